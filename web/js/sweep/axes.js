// What an analysis of a sweep can go along.

/** The members of a value that are no objects, by pointer: their texts, and whether they are numbers. @param {unknown} value @param {string} [at] @returns {{at: string, text: string, number: boolean}[]} */
const membersOf = (value, at = '') => (typeof value === 'object' && value !== null && !Array.isArray(value)
    ? Object.entries(value).flatMap(([key, v]) => membersOf(v, `${at}/${key}`)).sort((a, b) => (a.at < b.at ? -1 : 1))
    : [{ at, text: JSON.stringify(value), number: typeof value === 'number' }]);

/**
 * Whether a swept field has numbers that an analysis can go along, as api/analysis.c decides: its values are numbers, or two of its
 * objects differ in one number alone. Without a list of values they are drawn, so numbers.
 * @param {unknown} values
 */
export function varies(values) {
    const seen = new Map(), all = (Array.isArray(values) ? values : [0]).map(value => membersOf(value));
    const others = new Set(all.flat().filter(m => !m.number && m.text !== 'null').map(m => m.at)); // a place with words too is no axis
    for (const members of all)
        for (const { at, text, number } of members) {
            const is = number && !others.has(at);
            const rest = at + JSON.stringify(members.filter(other => other.at !== at));
            if (is && (!at || (seen.get(rest) ?? text) !== text))
                return true;
            if (is)
                seen.set(rest, text);
        }
    return false;
}
