import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';

/** A string that is to be translated, as catalogues have it. */
export interface IString {
  text: string;
  plural: string | null;
  file: string;
}

/** Return the files of a directory and of those below. */
export function filesOf(directory: string): string[] {
  return readdirSync(directory, { recursive: true, encoding: 'utf8' })
    .filter(name => /\.tsx?$/.test(name) && !name.endsWith('schema.ts'))
    .map(name => join(directory, name));
}

/** Find the strings of all calls of the translator. */
export function stringsOf(directory: string): IString[] {
  const found: IString[] = [];
  for (const file of filesOf(directory)) {
    visit(parse(file), node => {
      if (!ts.isCallExpression(node)) {
        return;
      }
      const { expression, arguments: given } = node;
      const name = ts.isPropertyAccessExpression(expression)
        ? expression.name.text
        : '';
      const [first, second] = given;
      if (name === '__' && first && ts.isStringLiteralLike(first)) {
        found.push({ text: first.text, plural: null, file });
      } else if (
        name === '_n' &&
        first &&
        second &&
        ts.isStringLiteralLike(first) &&
        ts.isStringLiteralLike(second)
      ) {
        found.push({ text: first.text, plural: second.text, file });
      }
    });
  }
  return found;
}

/** Find the strings of a settings schema that people read. */
export function stringsOfSchema(file: string): IString[] {
  const found: IString[] = [];
  JSON.parse(readFileSync(file, 'utf8'), (key, value: unknown) => {
    if (READ.includes(key) && typeof value === 'string') {
      found.push({ text: value, plural: null, file });
    }
    return value;
  });
  return found;
}

const READ = ['title', 'description', 'jupyter.lab.setting-icon-label'];
const SHOWN = ['title', 'placeholder', 'alt', 'aria-label', 'caption'];

/** Find what is shown without having been translated: text between tags, and attributes. */
export function bareStringsOf(directory: string): string[] {
  const found: string[] = [];
  for (const file of filesOf(directory)) {
    visit(parse(file), node => {
      if (ts.isJsxText(node) && /\p{L}{2,}/u.test(node.text)) {
        found.push(`${file}: ${node.text.trim()}`);
      }
      if (
        ts.isJsxAttribute(node) &&
        SHOWN.includes(node.name.getText()) &&
        node.initializer &&
        ts.isStringLiteral(node.initializer) &&
        /\p{L}{2,}/u.test(node.initializer.text)
      ) {
        found.push(`${file}: ${node.getText()}`);
      }
    });
  }
  return found;
}

function parse(file: string): ts.SourceFile {
  const text = readFileSync(file, 'utf8');
  return ts.createSourceFile(file, text, ts.ScriptTarget.Latest, true);
}

function visit(node: ts.Node, look: (node: ts.Node) => void): void {
  look(node);
  ts.forEachChild(node, child => visit(child, look));
}
