// Every picture of the dashboard, of small real runs: for the test that walks them (pictures.test.mjs), and to look at.
//
//     node tests/e2e/gallery.mjs FOLDER [TEXT]
//
// saves each card with a picture as FOLDER/LOOK/VIEW-NUMBER.png, on phone and desktop, light and dark, of runs with usual content, with
// nothing and with as much as there can be, and sheets of them as FOLDER/sheets/LOOK-NUMBER.png. TEXT: only views whose names have it.
import { mkdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

import { Daemon, until } from '../lib/daemon.mjs';
import { Browser, looks } from './browser.mjs';

/** What a page shows in place of a picture: a run that ended before it had any, a sweep without results. */
export const STATE = 'main .state:visible, main .note:visible';
/** A card that is drawn. */
export const CARD = 'main .card.chart';

/** The plots of a typed formula, and the charts of learned scalars, which come after the others of a sweep. */
const FORMULA = '.formula-charts canvas:not([aria-label$=": loading"])', SCALARS = 'main h2:has-text("Learned scalars")';

const tiny = { train: { steps: 2, batch: 4, eval_every: 2 }, trials: 1, resources: { threads: 1 } };
const small = { ...tiny, model: { width: 16, depth: 2, heads: 2 }, data: { split: { train: 16, val: 8, test: 8 } } };
const maps = (more = {}) => ({ probe_batch: 4, heatmaps: { layers: [2], heads: [1], every: 2, ...more } });
const axes = (...list) => ({ sweep: { axes: list.map(([pointer, values]) => ({ pointer, values })), metric: 'acc/val', mode: 'max' } });
const arms = [{ activation: 'softmax' }, { activation: 'poly', degree: 3, scale: 'fixed' }];

/** Templates that together use every kind of picture, each cut down to few short runs. */
const few = [
    { template: 'E01', ...small, train: { steps: 4, batch: 4, eval_every: 2 }, trials: 2, ...axes(['/model/patch', [4, 7]], ['/attention/k', [0.1, 1, 10]]) },
    { template: 'E02', ...small, ...axes(['/attention', arms], ['/model/patch', [7]]) },
    { template: 'E04', ...small },
    { template: 'E06', ...small, diagnostics: maps() },
    { template: 'E09', ...small },
    { template: 'E10', ...tiny, train: { steps: 2, eval_every: 2 }, data: { pde: { grid: 5, test_grid: [6, 9] } } },
    { template: 'E12', ...small },
    { template: 'E16', ...tiny },
    { template: 'E18', ...small },
];
/** All of the small variants with all of their combinations. */
const seen = { ...tiny, train: { steps: 6, batch: 4, eval_every: 2 } }, pictures = { ...seen, model: { width: 16, heads: 2 }, data: { split: { train: 16, val: 8, test: 8 } } };
const many = [
    ...['E01', 'E02', 'E03', 'E04', 'E09', 'E12', 'E17', 'E18'].map(template => ({ template, ...pictures })),
    ...['E05', 'E11', 'E13', 'E15', 'E16'].map(template => ({ template, ...seen })),
    { template: 'E06', ...tiny, diagnostics: maps({ layers: [2, 4], heads: [1, 2] }) }, { template: 'E10', ...tiny, train: { steps: 3, eval_every: 1 } },
];

const image = (more = {}) => ({ model: { preset: 'vit_micro', width: 16, depth: 2, heads: 2, patch: 7, pool: 'cls' }, data: { dataset: 'digits_gen', split: { rule: 'count', train: 64, val: 16 } }, resources: { device: 'cpu', threads: 1 },
    train: { steps: 6, batch: 16, eval_every: 2, init: 'trunc_xavier' }, ...more });
const text = (more = {}) => ({ ...image(), model: { preset: 'gpt_micro', width: 16, depth: 1, heads: 2, context: 16 }, data: { dataset: 'text_gen', context: 16 }, train: { steps: 6, batch: 4, eval_every: 3 }, ...more });
const probes = { every: 2, probe_batch: 4, heatmaps: { every: 2 }, histograms: {} };
const cubic = { activation: 'poly', degree: 3, scale: 'learned', init_logit_std: 0.6 };
const equation = { name: 'reaction', model: { preset: 'pinn_micro', width: 8, mlp_ratio: 2, head_width: 16 }, attention: { activation: 'poly', degree: 3 }, register: 'reaction',
    data: { dataset: 'pde_reaction', pde: { grid: 9, test_grid: [12, 17] } }, diagnostics: { every: 0 }, resources: { device: 'cpu', threads: 1 }, train: { steps: 6, eval_every: 2, optimizer: { name: 'lbfgs' } } };

/** Runs by name; `after`: only once that one has succeeded. */
const runs = {
    vit: image({ name: 'vit', attention: cubic, diagnostics: probes }),
    gpt: text({ name: 'gpt', diagnostics: probes, norm: { placement: 'S5' } }),
    swin: image({ name: 'swin', model: { preset: 'swin_micro' }, train: { steps: 1, batch: 4 } }),
    xcit: image({ name: 'xcit', model: { preset: 'xcit_micro' }, train: { steps: 1, batch: 4 } }),
    nystrom: image({ name: 'nystrom', model: { preset: 'nystrom_micro' }, data: { dataset: 'listops_gen', split: { train: 200, val: 8, test: 8 } }, train: { steps: 1, batch: 4 } }),
    teacher: image({ name: 'teacher', register: 'teacher' }),
    deit: Object.assign(image({ name: 'deit', model: { preset: 'deit_micro' }, train: { steps: 1, batch: 4, teacher: { model: 'teacher' } } }), { after: 'teacher' }),
    equation,
    bare: image({ name: 'bare', diagnostics: { every: 0 } }),
    formulas: image({ name: 'formulas', attention: { formulas: ['a*s^3/(1+abs(s))', 'softmax(a*s)', '1/s'] }, diagnostics: { every: 2 } }),
};
/** As much as there can be: many layers and heads, hundreds of tokens, many steps, names that need room. */
const fullRuns = {
    deep: image({ name: 'twenty-four layers of fifty tokens, every head with a scale of its own', model: { preset: 'vit_micro', width: 16, depth: 24, heads: 4, patch: 4, pool: 'cls' }, attention: { ...cubic, scale_share: 'head' },
        train: { steps: 120, batch: 1, eval_every: 30 }, diagnostics: { every: 1, probe_batch: 1, heatmaps: { layers: [1, 24], heads: [1, 4], every: 60 }, histograms: { at: [0, 0.1, 0.3, 0.6, 1] } } }),
    tokens: image({ name: 'two hundred tokens', model: { preset: 'vit_micro', width: 16, depth: 2, heads: 2, patch: 2, pool: 'cls' }, attention: cubic, train: { steps: 2, batch: 2 }, diagnostics: { every: 1, probe_batch: 2, heatmaps: { layers: [2], every: 1 } } }),
    long: text({ name: 'long', model: { preset: 'gpt_micro', width: 16, depth: 12, heads: 2, context: 256 }, data: { dataset: 'text_gen', context: 256 }, attention: { activation: 'formula', formula: 'exp(s)/(exp(b)+rowsum(exp(s)))', params: { b: { init: 1, per: 'head' } } },
        train: { steps: 12, batch: 1, eval_every: 4 }, diagnostics: { every: 4, probe_batch: 1, heatmaps: { layers: [1, 12], every: 6 }, histograms: {} } }),
    stages: image({ name: 'three stages', model: { preset: 'swin_micro', widths: [32, 64, 128], depths: [2, 6, 2], head_counts: [1, 2, 4], patch: [1, 1] }, norm: { placement: 'S4' }, train: { steps: 1, batch: 1 } }),
    formulas_full: image({ name: 'six formulas with learned scalars in eight layers', model: { preset: 'vit_micro', width: 16, depth: 8, heads: 2, patch: 7, pool: 'cls' }, train: { steps: 20, batch: 4, eval_every: 5 }, diagnostics: { every: 2, probe_batch: 4 },
        attention: { params: { a: { init: 0.5 }, offset: { init: 0.1 } }, formulas: ['a*s^3/(1+abs(s))+offset*s', 'softmax(a*s)', 'a*sigmoid(s-log(n)+offset)', 'a*max(s, 0)^2/n + offset', 'a*sin(s)/sqrt(n)', 'where(s > offset, a*s^2, a*(exp(s) - 1))/(1 + rowsum(abs(s)))'] } }),
    wide: { ...equation, name: 'wide', register: null, data: { dataset: 'pde_convection', pde: { grid: 9, test_grid: [256, 300] } } },
};

export class Gallery {
    /** @param {{full?: boolean, checks?: string[]}} [options] `full`: with the largest contents too; `checks`: statements of the theory that are examined */
    static async start({ full = false, checks = ['T5', 'T3'] } = {}) {
        const self = new Gallery();
        self.full = full;
        self.checks = checks;
        self.daemon = await Daemon.start({ flags: ['--devices.cpu_slots=2'] });
        try {
            await self.#fill();
        } catch (error) {
            await self.daemon.stop();
            throw error;
        }
        return self;
    }

    async #fill() {
        const { daemon, full } = this, all = full ? { ...runs, ...fullRuns } : runs;
        /** Run, and job, by name. @type {Record<string, {job: string, run: string}>} */
        this.at = {};
        for (const [name, { after, ...document }] of Object.entries(all)) {
            if (after) {
                await daemon.reach(this.at[after].run, 'succeeded');
                await until('the model', () => daemon.get(`/api/v1/models/${after}/versions/1`));
            }
            this.at[name] = await daemon.submit(document);
        }
        for (const check of this.checks) {
            const { id, run_ids: [run] } = await daemon.post('/api/v1/jobs', { template: check, params: { seeds: 1 } });
            this.at[check] = { job: id, run };
        }
        /** The first job of each experiment. @type {Record<string, string>} */
        this.jobs = {};
        for (const body of full ? many : few) {
            const answer = await daemon.post('/api/v1/jobs', body);
            this.jobs[body.template] = answer.id ?? answer.jobs[0].id;
        }
        // What never starts has nothing to show.
        const nothing = await daemon.submit(image({ name: 'nothing', attention: cubic, diagnostics: probes, trials: 2, resources: { device: 'cpu', threads: 1, priority: -100 }, ...axes(['/train/seed', [1, 2]]) }));
        const solution = await daemon.submit({ ...equation, name: 'no solution', register: null, resources: { ...equation.resources, priority: -100 } });
        const check = await daemon.post('/api/v1/jobs', { template: 'T2' });
        this.at.nothing = nothing;
        this.at.solution = solution;
        this.at.check = { job: check.id, run: check.run_ids[0] };
        for (const { job } of [nothing, solution, this.at.check])
            await daemon.post(`/api/v1/jobs/${job}/cancel`);
        await until('all runs', async () => (await daemon.get('/api/v1/runs?state=queued&limit=1')).runs.length + (await daemon.get('/api/v1/runs?state=running&limit=1')).runs.length === 0, { limit: 2400000, every: 500 });
        for (const { run } of Object.values(this.at).filter(({ job }) => ![nothing.job, solution.job, check.id].includes(job)))
            await daemon.reach(run, 'succeeded');
        await until('the model', () => daemon.get('/api/v1/models/reaction/versions/1'));
        await daemon.post('/api/v1/models/reaction/versions/1/load');
        this.compared = (await daemon.get(`/api/v1/runs?experiment=${full ? 'E18' : 'E06'}`)).runs.map(run => run.id).slice(0, 20);
    }

    /**
     * Views with pictures: a name, the address, what shows that it is there, whether it is one without contents, and whether each of
     * its pictures is saved though they are of one kind.
     * @returns {{name: string, hash: string, ready: string, empty?: boolean, each?: boolean}[]}
     */
    views() {
        const { at, full } = this, run = (/** @type {string} */ name, /** @type {string} */ tab) => `#/runs/${at[name].run}?tab=${tab}`;
        const drawn = `${CARD} canvas:not([aria-label$=": loading"])`, list = [
            { name: 'curves', hash: `#/runs/${at.vit.run}`, ready: `${CARD} .uplot` },
            { name: 'attention', hash: run('vit', 'attention&layer=2&head=1'), ready: drawn },
            { name: 'attention-softmax', hash: run('gpt', 'attention'), ready: drawn },
            { name: 'gradients', hash: run('vit', `gradients&with=${at.gpt.run}`), ready: drawn },
            ...['vit', 'deit', 'gpt', 'swin', 'xcit', 'nystrom', 'equation'].map(name => ({ name: `network-${name}`, hash: run(name, 'config'), ready: drawn })),
            { name: 'positions', hash: `#/runs/${at.gpt.run}`, ready: `${CARD}.positions svg` },
            { name: 'solution', hash: run('equation', 'solution'), ready: drawn },
            { name: 'try-solution', hash: '#/models/reaction', ready: drawn },
            ...this.checks.map(name => ({ name: `check-${name}`, hash: `#/runs/${at[name].run}`, ready: 'table.results' })),
            { name: 'sweep', hash: `#/jobs/${this.jobs.E01}`, ready: `${CARD} .uplot` }, // curves come last
            { name: 'scalars', hash: `#/jobs/${at.formulas.job}`, ready: SCALARS, each: true },
            { name: 'formula', hash: `#/submit?job=${at.formulas.job}`, ready: FORMULA },
            { name: 'compare', hash: `#/compare?runs=${this.compared.join()}`, ready: `${CARD} .uplot` },
            ...Object.keys(this.jobs).map(name => ({ name: `experiment-${name}`, hash: `#/experiments/${name}`, ready: drawn })),
            ...['metrics', 'attention', 'gradients'].map(tab => ({ name: `empty-${tab}`, hash: run('nothing', tab), ready: STATE, empty: true })),
            { name: 'empty-attention-bare', hash: run('bare', 'attention'), ready: STATE, empty: true },
            { name: 'empty-solution', hash: run('solution', 'solution'), ready: STATE, empty: true },
            { name: 'empty-check', hash: `#/runs/${at.check.run}`, ready: STATE, empty: true },
            { name: 'empty-sweep', hash: `#/jobs/${at.nothing.job}`, ready: STATE, empty: true },
            { name: 'empty-experiment', hash: '#/experiments/E07', ready: STATE, empty: true },
            { name: 'empty-compare', hash: `#/compare?runs=${at.nothing.run}`, ready: 'main h1', empty: true },
        ];
        return !full ? list : [...list,
            { name: 'full-curves', hash: `#/runs/${at.deep.run}?folds=layers-open`, ready: `${CARD} .uplot` },
            { name: 'full-attention', hash: run('deep', 'attention&layer=24&head=4'), ready: drawn },
            { name: 'full-attention-tokens', hash: run('tokens', 'attention'), ready: drawn },
            { name: 'full-attention-formula', hash: run('long', 'attention&layer=12'), ready: drawn },
            { name: 'full-gradients', hash: run('deep', `gradients&with=${at.long.run}&glog=1`), ready: drawn },
            ...['deep', 'long', 'stages'].map(name => ({ name: `full-network-${name}`, hash: run(name, 'config'), ready: drawn })),
            { name: 'full-positions', hash: `#/runs/${at.long.run}`, ready: `${CARD}.positions svg` },
            { name: 'full-scalars', hash: `#/jobs/${at.formulas_full.job}`, ready: SCALARS, each: true },
            { name: 'full-formula', hash: `#/submit?job=${at.formulas_full.job}`, ready: FORMULA },
            { name: 'full-solution', hash: run('wide', 'solution'), ready: drawn },
        ];
    }

    /** Opens a view, unfolds what is folded, and waits until all of it is drawn. @param {any} page @param {{hash: string, ready: string, empty?: boolean}} view */
    async open(page, { hash, ready, empty = false }) {
        await page.goto(`${this.daemon.url}/${hash}`);
        await page.locator(ready).first().waitFor();
        await page.evaluate(() => document.querySelectorAll('main details:not([open]):not(.chart-foot details)').forEach(fold => { if (!fold.closest('.chart-foot')) fold.open = true; }));
        await page.waitForFunction(({ card, bare }) => {
            const cards = [...document.querySelectorAll(card)].filter(one => one.checkVisibility());
            return document.querySelectorAll('main .bones').length === 0 && (bare || cards.length > 0) && cards.every(one => one.querySelector('.uplot, .one-figure, .figure-bars, svg[role], .state, canvas:not([aria-label$=": loading"])'));
        }, { card: CARD, bare: empty }, { timeout: 60000 });
    }

    async stop() {
        await this.daemon?.stop();
    }
}

/** Cards of one look on sheets, as many as fit. @param {any} page @param {{file: string, name: string}[]} cards @param {string} to @param {number} columns */
async function sheets(page, cards, to, columns) {
    const each = 5 * columns;
    for (let i = 0; i * each < cards.length; i++) {
        const part = cards.slice(i * each, (i + 1) * each).map(({ file, name }) => `<figure><figcaption>${name}</figcaption><img src="data:image/png;base64,${readFileSync(file).toString('base64')}"></figure>`);
        await page.setContent(`<style>body{margin:8px;display:grid;grid-template-columns:repeat(${columns},1fr);gap:8px;align-items:start;background:#888;font:12px sans-serif}figure{margin:0}img{width:100%}</style>${part.join('')}`);
        await page.screenshot({ path: `${to}-${String(i + 1).padStart(2, '0')}.png`, fullPage: true });
    }
}

/** @param {Gallery} gallery @param {string} to @param {string} only */
export async function save(gallery, to, only = '') {
    const browser = await Browser.start(), table = await browser.browser.newPage({ viewport: { width: 1500, height: 1000 } });
    mkdirSync(path.join(to, 'sheets'), { recursive: true });
    for (const look of looks) {
        const page = await browser.open('about:blank', { ...look, origin: gallery.daemon.url }), cards = [];
        mkdirSync(path.join(to, look.name), { recursive: true });
        for (const view of gallery.views().filter(({ name }) => name.includes(only))) {
            await gallery.open(page, view).then(() => page.evaluate(() => { // what sticks to the window would cover cards
                for (const el of document.querySelectorAll('*'))
                    if (['sticky', 'fixed'].includes(getComputedStyle(el).position))
                        el.style.position = 'static';
            })).catch(error => console.log(`${look.name} ${view.name}: ${error.message.split('\n')[0]}`));
            for (const [i, card] of (await page.locator(view.empty ? 'main' : CARD).all()).entries()) {
                if (!await card.isVisible())
                    continue;
                const name = `${view.name}-${i + 1}`, file = path.join(to, look.name, `${name}.png`);
                await page.screenshot({ path: file, fullPage: true, clip: await card.evaluate(el => {
                    const { x, y, width, height } = el.getBoundingClientRect();
                    return { x: x + scrollX, y: y + scrollY, width, height };
                }) });
                cards.push({ file, name });
            }
        }
        await sheets(table, cards, path.join(to, 'sheets', look.name), look.width < 500 ? 4 : 3);
        console.log(`${look.name}: ${cards.length} cards${page.problems.length ? `; ${page.problems.join('; ')}` : ''}`);
        await page.context().close();
    }
    await browser.stop();
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
    const [to, only] = process.argv.slice(2);
    if (!to)
        throw new Error('usage: node tests/e2e/gallery.mjs FOLDER [TEXT]');
    const gallery = await Gallery.start({ full: true, checks: Array.from({ length: 20 }, (_, i) => `T${i + 1}`) });
    try {
        await save(gallery, to, only);
    } finally {
        await gallery.stop();
    }
}
