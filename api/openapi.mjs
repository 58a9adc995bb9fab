// openapi.mjs IN.yaml OUT.json: the contract as JSON.
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

// The library is in the build folder, next to the output.
const [, , input, output] = process.argv;
const { parse } = createRequire(path.resolve(output))('yaml');
writeFileSync(output, JSON.stringify(parse(readFileSync(input, 'utf8'), { strict: true, uniqueKeys: true })));
