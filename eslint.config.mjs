import eslint from '@eslint/js';
import jupyter from '@jupyter/eslint-plugin';
import prettier from 'eslint-plugin-prettier/recommended';
import reactHooks from 'eslint-plugin-react-hooks';
import tseslint from 'typescript-eslint';

export default tseslint.config(
  { ignores: ['labextension/lib/**', 'labextension/src/api/schema.ts'] },
  eslint.configs.recommended,
  tseslint.configs.recommended,
  jupyter.configs.recommended,
  reactHooks.configs.flat.recommended,
  prettier,
  {
    files: ['labextension/**/*.{ts,tsx}'],
    rules: {
      '@typescript-eslint/naming-convention': [
        'error',
        {
          selector: 'interface',
          format: ['PascalCase'],
          custom: { regex: '^I[A-Z]', match: true }
        }
      ],
      '@typescript-eslint/no-namespace': 'off',
      'max-lines': ['error', 400],
      'no-console': 'error',
      // one small bundle, needed at activation
      'jupyter/prefer-lazy-imports': 'off',
      curly: ['error', 'all'],
      eqeqeq: 'error'
    }
  },
  {
    // The page of a Hub has no translations yet: it is English as it is written.
    files: ['labextension/hub/**/*.{ts,tsx}'],
    rules: { 'jupyter/no-untranslated-string': 'off' }
  }
);
