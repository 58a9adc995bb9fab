// Where a JSON Pointer stands in a text: errors of the API name a place by pointer, and an editor wants characters. Pure.

/**
 * Reads as far as it can: of a text that is no JSON what was read so far counts.
 * @param {string} text
 * @returns {Map<string, {from: number, to: number, key: [number, number] | null}>} values by pointer, with their keys
 */
export function locate(text) {
    /** @type {Map<string, {from: number, to: number, key: [number, number] | null}>} */
    const found = new Map();
    let at = 0;
    const blank = () => {
        while (at < text.length && /\s/.test(text[at]))
            at++;
    };
    /** @returns {string | null} */
    const string = () => {
        if (text[at] !== '"')
            return null;
        const from = at;
        for (at++; at < text.length && text[at] !== '"'; at++)
            if (text[at] === '\\')
                at++;
        at++;
        try {
            return JSON.parse(text.slice(from, at));
        } catch {
            return null;
        }
    };
    /**
     * @param {string} path
     * @param {[number, number] | null} key
     * @returns {boolean} may one read on?
     */
    const value = (path, key) => {
        blank();
        const from = at;
        let good = true;
        if (text[at] === '{' || text[at] === '[') {
            const object = text[at] === '{';
            at++;
            for (let i = 0; good; i++) {
                blank();
                if (text[at] === (object ? '}' : ']')) {
                    at++;
                    break;
                }
                /** @type {[number, number] | null} */
                let own = null;
                let name = String(i);
                if (object) {
                    const start = at;
                    const read = string();
                    if (read === null) {
                        good = false;
                        break;
                    }
                    own = [start, at];
                    name = read;
                    blank();
                    if (text[at] !== ':') {
                        good = false;
                        break;
                    }
                    at++;
                }
                good = value(`${path}/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`, own);
                blank();
                if (text[at] === ',')
                    at++;
                else if (text[at] !== '}' && text[at] !== ']')
                    good = false;
            }
        } else if (text[at] === '"') {
            good = string() !== null;
        } else {
            const word = /^[^\s,\]}]+/.exec(text.slice(at, at + 64));
            at += word ? word[0].length : 0;
            good = word !== null;
        }
        found.set(path, { from, to: at, key });
        return good;
    };
    value('', null);
    return found;
}

/**
 * The stretch to mark for a pointer: the key of what is there, else the nearest thing around it.
 * @param {string} text
 * @param {string} pointer with or without '#'
 * @returns {[number, number]}
 */
export function stretchOf(text, pointer) {
    const all = locate(text);
    for (let path = decodeURIComponent(pointer.replace(/^#/, '')); ; path = path.slice(0, path.lastIndexOf('/'))) {
        const place = all.get(path);
        if (place)
            return place.key ?? (path === '' ? [place.from, Math.min(place.from + 1, place.to)] : [place.from, place.to]);
        if (path === '' || !path.includes('/'))
            return [0, 0];
    }
}

/**
 * Line and column, from 1.
 * @param {string} text
 * @param {number} at
 */
export function lineOf(text, at) {
    const before = text.slice(0, at).split('\n');
    return { line: before.length, column: before[before.length - 1].length + 1 };
}
