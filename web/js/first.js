// A plain script, before all modules: of the page that the address names it starts to fetch the modules at once, and asks for
// the catalogue of metrics and, for a run's page, what that page asks first. Which modules these are stands in the document as
// embed.mjs wrote it; served from a folder there is no such list, and they come as they are found.
{
    const [, view, one] = /^#\/?(\w*)(\/[^/?])?/.exec(location.hash) ?? [];
    const listOf = (/** @type {string} */ name) => document.querySelector(`meta[name="modules"][data-view="${name}"]`)?.getAttribute('content');
    const list = (one && listOf(`${view}/`)) ?? listOf(view || 'runs') ?? '';
    for (const url of list.split(' ').filter(Boolean)) {
        const link = document.createElement('link');
        link.rel = 'modulepreload';
        link.href = url;
        document.head.append(link);
    }
    const run = /^#\/?runs\/(\d+)/.exec(location.hash)?.[1];
    /** @type {Map<string, Promise<Response>>} */
    const early = new Map(['/api/v1/metrics/catalogue', ...(run ? [`/api/v1/runs/${run}`, `/api/v1/runs/${run}/metrics`] : [])].map(url => [url, fetch(url)]));
    for (const answer of early.values())
        answer.catch(() => {}); // the view that takes it reports the error
    Object.assign(globalThis, { early });
}
