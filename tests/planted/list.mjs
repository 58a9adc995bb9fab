// The list of planted faults: reads it, and says without building what is wrong with it.
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';

/** Where the job table stands; its rows are read as text, so that nothing has to be built. */
export const table = 'daemon/job/fields.c';

/**
 * @typedef {object} Change
 * @property {string} find
 * @property {string} put
 *
 * @typedef {object} Fault
 * @property {string} id
 * @property {string} what one sentence
 * @property {string[]} fields pointers of the job table
 * @property {string} file
 * @property {Change[]} changes
 * @property {string[]} tests the expected ones, narrowest first
 * @property {string} at file and line of the list
 */

/**
 * One list: records apart by empty lines, as README.md describes them.
 * @param {string} text
 * @param {string} name
 * @returns {Fault[]}
 */
export function parse(text, name) {
    /** @type {Fault[]} */
    const faults = [];
    /** @type {Fault | null} */
    let fault = null;
    let last = '';
    text.split('\n').forEach((line, i) => {
        const at = `${name}:${i + 1}`;
        const head = /^\[([a-z0-9-]+)\] (.+)$/.exec(line);
        const word = /^(field|file|test): (.+)$/.exec(line);
        if (line.startsWith('#') || line.trim() === '') {
            last = '';
        } else if (head) {
            fault = { id: head[1], what: head[2], fields: [], file: '', changes: [], tests: [], at };
            faults.push(fault);
        } else if (!fault) {
            throw new Error(`${at}: expected [name] and a sentence, not '${line}'`);
        } else if (word) {
            if (word[1] === 'field')
                fault.fields.push(...word[2].trim().split(/\s+/));
            else if (word[1] === 'test')
                fault.tests.push(word[2].trim());
            else
                fault.file = word[2].trim();
            last = '';
        } else if (/^[-+]( |$)/.test(line)) {
            const body = line.slice(2);
            if (line[0] === '-' && last !== '-')
                fault.changes.push({ find: body, put: '' });
            else if (fault.changes.length === 0)
                throw new Error(`${at}: + before any -`);
            else {
                const change = fault.changes[fault.changes.length - 1];
                const key = line[0] === '-' ? 'find' : 'put';
                change[key] += (change[key] || last === line[0] ? '\n' : '') + body;
            }
            last = line[0];
        } else
            throw new Error(`${at}: '${line}' is neither a key nor a line of a change`);
    });
    return faults;
}

/**
 * @param {string} root
 * @returns {Fault[]}
 */
export function load(root) {
    const folder = path.join(root, 'tests/planted/faults');
    return readdirSync(folder).filter(name => name.endsWith('.txt')).sort()
        .flatMap(name => parse(readFileSync(path.join(folder, name), 'utf8'), `tests/planted/faults/${name}`));
}

/**
 * The text as a pattern that blanks and line ends do not matter to: a formatted line stays found.
 * @param {string} find
 */
const pattern = find => new RegExp(find.trim().split(/\s+/).map(word => word.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')).join('\\s+'), 'g');

/**
 * The file's text with the fault in it. Throws unless each change applies exactly once.
 * @param {string} text
 * @param {Fault} fault
 */
export function plant(text, fault) {
    for (const { find, put } of fault.changes) {
        const places = [...text.matchAll(pattern(find))];
        if (places.length !== 1)
            throw new Error(`${fault.at}: [${fault.id}] ${places.length ? `stands ${places.length} times` : 'is not'} in ${fault.file}: ${find.trim().split('\n')[0]}`);
        text = text.slice(0, places[0].index) + put + text.slice(/** @type {number} */ (places[0].index) + places[0][0].length);
    }
    return text;
}

/**
 * What a line `test:` names. `unit NAME`: a compiled test program; `golden FOLDER` and `golden-bf16 FOLDER`: vectors of the
 * shared folder; `node FILE [PATTERN]`: a Node.js test, or those of it whose names fit the pattern; `wiring POINTER`: the
 * recompute case of that field.
 * @param {string} line
 */
export function testOf(line) {
    const match = /^(unit|golden|golden-bf16|node|wiring) (\S+)(?: (.+))?$/.exec(line);
    return match && { kind: match[1], name: match[2], only: match[3] ?? '' };
}

/**
 * The rows of the job table: pointer, and whether this build takes nothing but the default.
 * @param {string} text of fields.c
 */
export function rows(text) {
    const begin = text.indexOf('job_fields[] = {');
    return text.slice(begin).split(/\{(?=(?:ROW|BARE)\("\/)/).slice(1).map(row => ({
        pointer: /^(?:ROW|BARE)\("([^"]+)"/.exec(row)?.[1] ?? '',
        closed: /FLAGS\([^)]*\bONLY\b/.test(row),
    }));
}

/**
 * tests/planted/without.txt: fields for which there is no fault, by reason.
 * @param {string} text
 * @returns {Map<string, string>} pointer to reason
 */
export function exceptions(text) {
    const found = new Map();
    let reason = '';
    for (const line of text.split('\n')) {
        if (line.startsWith('#') || !line.trim())
            continue;
        if (/^\S.*:$/.test(line))
            reason = line.slice(0, -1);
        else if (/^\s+\//.test(line))
            line.trim().split(/\s+/).forEach(pointer => found.set(pointer, reason));
        else
            throw new Error(`without.txt: '${line}' is neither a reason that ends in a colon nor a row of pointers`);
    }
    return found;
}

/** @param {string} root */
const files = root => {
    /** @type {Map<string, string>} */
    const texts = new Map();
    return (/** @type {string} */ file) => {
        if (!texts.has(file))
            texts.set(file, existsSync(path.join(root, file)) ? readFileSync(path.join(root, file), 'utf8') : '');
        return texts.get(file) ?? '';
    };
};

/** @param {string} folder @returns {string[]} */
const walk = folder => existsSync(folder) ? readdirSync(folder, { withFileTypes: true }).flatMap(e =>
    e.name === 'node_modules' ? [] : e.isDirectory() ? walk(path.join(folder, e.name)) : [path.join(folder, e.name)]) : [];

/**
 * All that is wrong with the list, a sentence each.
 * @param {string} root
 * @returns {string[]}
 */
export function check(root) {
    const wrong = [];
    const read = files(root);
    const faults = load(root);
    const programs = walk(path.join(root, 'tests')).filter(file => file.endsWith('CMakeLists.txt')).map(file => readFileSync(file, 'utf8')).join('\n');
    const pointers = rows(read(table));
    const without = exceptions(read('tests/planted/without.txt'));
    const known = new Map(pointers.map(row => [row.pointer, row]));
    const ids = new Set();
    const covered = new Set();
    for (const fault of faults) {
        const say = (/** @type {string} */ text) => wrong.push(`${fault.at}: [${fault.id}] ${text}`);
        if (ids.has(fault.id))
            say('stands twice in the list');
        ids.add(fault.id);
        if (!fault.file || fault.changes.length === 0 || fault.tests.length === 0)
            say('needs file:, test: and a change');
        try {
            if (plant(read(fault.file), fault) === read(fault.file))
                say('changes nothing');
        } catch (error) {
            wrong.push(/** @type {Error} */ (error).message);
        }
        for (const pointer of fault.fields) {
            covered.add(pointer);
            if (!known.has(pointer))
                say(`names the field ${pointer}, which the job table does not have`);
        }
        for (const line of fault.tests) {
            const test = testOf(line);
            if (!test)
                say(`names the test '${line}': unit, golden, golden-bf16, node or wiring, and a name`);
            else if (test.kind === 'unit' && !new RegExp(`\\b${test.name}\\b`).test(programs))
                say(`names the program ${test.name}, which no CMakeLists.txt of tests knows`);
            else if (test.kind === 'node' && !existsSync(path.join(root, test.name)))
                say(`names the file ${test.name}, which is not there`);
            else if (test.kind === 'wiring' && !known.has(test.name))
                say(`names the field ${test.name}, which the job table does not have`);
        }
    }
    if (pointers.length < 100)
        wrong.push(`${table}: only ${pointers.length} rows of the job table could be read`);
    for (const { pointer, closed } of pointers) {
        if (covered.has(pointer) && without.has(pointer))
            wrong.push(`without.txt: ${pointer} has a fault and a reason to have none`);
        else if (!covered.has(pointer) && !without.has(pointer) && !closed)
            wrong.push(`${pointer}: no fault is planted in this field, and tests/planted/without.txt gives no reason`);
    }
    for (const pointer of without.keys())
        if (!known.has(pointer))
            wrong.push(`without.txt: the job table has no field ${pointer}`);
    return wrong;
}
