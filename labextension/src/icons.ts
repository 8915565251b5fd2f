import { LabIcon } from '@jupyterlab/ui-components';
export { caretDownIcon, caretRightIcon } from '@jupyterlab/ui-components';
import gpuSvg from '../style/icons/gpu.svg';

export const gpuIcon = new LabIcon({
  name: 'genv-jupyter:gpu',
  svgstr: gpuSvg
});
