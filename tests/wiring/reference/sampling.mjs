// From logits to a token as the completion request documents it (api/openapi.yaml; daemon/worker/serve/serve.h): bias, penalties by
// what was generated so far, temperature, the fewest tokens that reach top_p, and a uniform number from (seed, index).

const word = 2n ** 64n - 1n;

/** SplitMix64 (Steele, Lea, Flood 2014), its output function. */
function splitmix(x) {
    x = x + 0x9e3779b97f4a7c15n & word;
    x = (x ^ x >> 30n) * 0xbf58476d1ce4e5b9n & word;
    x = (x ^ x >> 27n) * 0x94d049bb133111ebn & word;
    return x ^ x >> 31n;
}

/** Uniform in [0, 1), 53 bits: the number of token `index` of a completion. */
export function uniform(seed, index) {
    return Number(splitmix(splitmix(BigInt(seed)) ^ splitmix(~BigInt(index) & word)) >> 11n) * 2 ** -53;
}

export function logSoftmax(logits) {
    const top = Math.max(...logits), sum = logits.reduce((acc, z) => acc + Math.exp(z - top), 0);
    return logits.map(z => z - top - Math.log(sum));
}

/**
 * @param {number[]} logits of the model
 * @param {number[]} generated token ids so far, without the prompt
 */
export function pick(logits, generated, { temperature = 1, top_p = 1, top_k = 0, min_p = 0, repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0, logit_bias = {}, seed = 0 }, prompt = []) {
    const z = [...logits];
    for (const [id, bias] of Object.entries(logit_bias))
        z[id] += bias;
    for (const id of new Set([...prompt, ...generated]))
        z[id] = z[id] > 0 ? z[id] / repetition_penalty : z[id] * repetition_penalty;
    const counts = new Map();
    for (const id of generated)
        counts.set(id, (counts.get(id) ?? 0) + 1);
    for (const [id, count] of counts)
        z[id] -= presence_penalty + count * frequency_penalty;
    const best = z.indexOf(Math.max(...z));
    if (temperature === 0)
        return best;
    const weight = z.map(x => Math.exp((x - z[best]) / temperature));
    let ids = z.map((_, id) => id).filter(id => weight[id] >= min_p);
    if (top_k > 0 && top_k < ids.length)
        ids = ids.sort((a, b) => weight[b] - weight[a] || a - b).slice(0, top_k);
    if (top_p < 1) {
        const total = ids.reduce((acc, id) => acc + weight[id], 0), order = ids.sort((a, b) => weight[b] - weight[a] || a - b);
        let mass = 0, n = 0;
        while (n < order.length && mass < top_p * total)
            mass += weight[order[n++]];
        ids = order.slice(0, Math.max(n, 1));
    }
    let left = uniform(seed, generated.length) * ids.reduce((acc, id) => acc + weight[id], 0);
    for (const id of ids) {
        left -= weight[id];
        if (left < 0)
            return id;
    }
    return ids.at(-1);
}
