// Writing a job: the document as text, checked while one writes, with the meaning of each setting next to it.
import { getJob, getRun, isAbort, listFields, listModels } from '../api.js';
import { fill, h, icon, message, toast } from '../dom.js';
import { example, pretty } from '../example.js';
import { bytes, count } from '../format.js';
import { formulaBox } from '../formula/box.js';
import { submitJob, tryJob } from '../jobs.js';
import { lineOf, stretchOf } from '../pointer.js';
import { quickForm } from '../quick.js';
import { short } from '../table/columns.js';
import { colour, onTheme } from '../theme.js';

const starts = [
    { name: 'Digits, cubic attention', document: example },
    { name: 'Digits, softmax', document: {
        name: 'digits softmax', model: { preset: 'vit_micro', patch: 7 }, attention: { activation: 'softmax' }, data: { dataset: 'digits_gen' },
        train: { epochs: 24, optimizer: { lr: 0.003 } }, register: 'digits-softmax' } },
    { name: 'Scale sweep with trials', document: {
        name: 'scale sweep', experiment: 'E01', trials: 3, model: { preset: 'vit_micro', patch: 7 }, attention: { activation: 'poly', degree: 3, scale: 'k', k: 4 },
        data: { dataset: 'digits_gen' }, train: { epochs: 4 }, sweep: { method: 'grid', axes: [{ pointer: '/attention/k', log: [0.01, 100, 5] }], metric: 'acc/val', mode: 'max' } } },
    { name: 'Generated text, language model', document: {
        name: 'generated text', model: { preset: 'gpt_micro', context: 64 }, attention: { activation: 'poly', degree: 3, scale: 'learned' },
        data: { dataset: 'text_gen', tokenizer: 'words' }, train: { steps: 1000, batch: 16, optimizer: { lr: 0.004 } }, register: 'generated-text' } },
    { name: 'Characters, language model', document: {
        name: 'small text', model: { preset: 'gpt_micro', context: 128 }, attention: { activation: 'poly', degree: 3, scale: 'fixed' },
        data: { dataset: 'text', path: 'shared/tinyshakespeare.txt', tokenizer: 'bytes', split: { rule: 'fraction', train: 0.9, val: 0.1 } }, train: { steps: 1500, batch: 16 }, register: 'small-text' } },
];

/** Settings in the order of how often they are set. */
export const often = ['/name', '/model/preset', '/data/dataset', '/attention/activation', '/attention/degree', '/attention/scale', '/attention/k', '/train/epochs', '/train/steps', '/train/batch',
    '/train/optimizer/name', '/train/optimizer/lr', '/train/seed', '/model/depth', '/model/width', '/model/heads', '/experiment', '/tags', '/trials', '/register'];

/** Groups of the others, as a document has them. */
export const groupOrder = ['model', 'attention', 'norm', 'data', 'train', 'sweep', 'diagnostics', 'resources'];

/** Of the memory plan, in the order of the bar. */
const memory = [['weights', 'Weights'], ['master', 'Master weights'], ['gradients', 'Gradients'], ['moment1', 'First moment'], ['moment2', 'Second moment'], ['ema', 'Average of weights'],
    ['activations', 'Activations'], ['workspace', 'Workspace'], ['inputs', 'Inputs'], ['cache', 'Cache']];

/**
 * A job that scores a version of a model ("mnist:3"), or a checkpoint of a run.
 * @param {string} subject
 * @param {string | null} step
 */
const evaluation = (subject, step) => ({
    kind: 'evaluate', ...subject.includes(':') ? { model: subject } : { run: subject, checkpoint: step ? Number(step) : 'best' }, split: 'test',
});

/**
 * A document that begins with the weights of a checkpoint, or of a version of a model.
 * @param {Record<string, any>} document of the run
 * @param {Record<string, any>} start
 * @param {string} name
 */
const continuation = (document, start, name) => ({ ...document, name, train: { ...document.train, start } });

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function submitView(context) {
    const { signal, query } = context;
    context.setTitle('New job');
    const editor = h('textarea', { class: 'editor', spellcheck: 'false', autocomplete: 'off', autocapitalize: 'off', wrap: 'off', 'aria-label': 'Job document, JSON', rows: 26 });
    const lines = h('pre', { class: 'gutter', 'aria-hidden': 'true' });
    const paint = h('pre', { class: 'editor paint', 'aria-hidden': 'true' });
    /** Stretches that something is wrong with. @type {[number, number][]} */
    let wrong = [];
    const verdict = h('div', { class: 'stack', role: 'status' });
    const submit = h('button', { class: 'primary', type: 'button' }, icon('running'), 'Submit');
    const tidy = h('button', { type: 'button', title: 'Indent the document' }, 'Format');
    const start = h('select', { class: 'auto', 'aria-label': 'Start from an example' }, h('option', { value: '' }, 'Start from an example'), starts.map((s, i) => h('option', { value: i }, s.name)));
    const find = h('input', { type: 'search', placeholder: 'Find a setting', 'aria-label': 'Find a setting', autocomplete: 'off', spellcheck: 'false', value: query.get('find') ?? '' });
    const list = h('div', { class: 'fields', tabindex: 0, role: 'region', 'aria-label': 'Settings' });
    /** @type {import('../types').Field[]} */
    let fields = [];
    let key = '';
    /** @type {any} */
    let plan = null;

    const read = () => {
        try {
            return JSON.parse(editor.value);
        } catch {
            return undefined;
        }
    };
    const quick = quickForm(read, document => put(pretty(document)));
    const formula = formulaBox(read, document => put(pretty(document)), signal);

    const el = h('div', null, h('p', { class: 'small' }, h('a', { href: '#/' }, '← Runs')),
        h('div', { class: 'head' }, h('div', null, h('h1', null, 'New job'), h('p', { class: 'sub' }, 'A job is a JSON document. It is checked as you write; nothing starts before you submit it.')),
            h('div', { class: 'row' }, start, tidy, submit)),
        h('div', { class: 'write' }, h('div', { class: 'stack' }, quick.el, formula.el, h('div', { class: 'card editor-box' }, lines, h('div', { class: 'editor-stack' }, paint, editor)), verdict),
            h('aside', { class: 'card stack fields-box', 'aria-label': 'What each setting means' }, h('div', { class: 'search' }, icon('search'), find), list)));

    function number() {
        const n = editor.value.split('\n').length;
        const bad = new Set(wrong.map(([from]) => lineOf(editor.value, from).line));
        fill(lines, Array.from({ length: n }, (_, i) => h('span', { data: { bad: bad.has(i + 1) } }, `${i + 1}\n`)));
        editor.rows = Math.max(16, Math.min(60, n + 1));
        colours();
    }

    /** The text in colours, drawn under the field that one writes in; what is wrong is underlined. */
    function colours() {
        const { value } = editor;
        /** @type {(Node | string)[]} */
        const parts = [];
        let at = 0;
        const put = (/** @type {string} */ text, /** @type {string} */ kind) => {
            const from = at;
            at += text.length;
            const bad = wrong.some(([a, b]) => a < at && b > from);
            parts.push(kind || bad ? h('span', { class: `${kind}${bad ? ' wrong' : ''}` }, text) : text);
        };
        for (const match of value.matchAll(/("(?:[^"\\\n]|\\.)*"?)(\s*:)?|-?\d[\d.eE+-]*|\b(?:true|false|null)\b|[^"\dtfn-]+|./gs)) {
            const [whole, text, colon] = match;
            if (text === undefined) {
                put(whole, /^-?\d/.test(whole) ? 'n' : /^(true|false|null)$/.test(whole) ? 'w' : '');
            } else {
                put(text, colon ? 'k' : 's');
                if (colon)
                    put(colon, '');
            }
        }
        fill(paint, parts, '\n');
    }

    /** @param {string} text */
    function put(text) {
        editor.value = text;
        number();
        check();
    }

    /** @param {[number, number]} stretch */
    function show([from, to]) {
        editor.focus();
        editor.setSelectionRange(from, to);
        // A line is 20 px high; the place comes to the middle.
        const { line } = lineOf(editor.value, from);
        editor.scrollTop = Math.max(0, (line - 8) * 20);
    }

    /** @param {{pointer?: string, detail: string}} problem */
    function place(problem) {
        const stretch = stretchOf(editor.value, problem.pointer ?? '');
        const { line } = lineOf(editor.value, stretch[0]);
        return h('li', null, h('button', { type: 'button', class: 'link mono', on: { click: () => show(stretch) } }, (problem.pointer ?? '#').replace(/^#\/?/, '').replaceAll('/', '.') || 'document'),
            h('span', { class: 'muted small' }, ` line ${line} `), problem.detail);
    }

    /** The bytes that the run will take, by what they hold. */
    function memoryBar() {
        if (!plan?.bytes) // a kind that takes no memory worth a plan
            return null;
        const parts = memory.map(([id, word]) => ({ word, size: plan.bytes[id] ?? 0 })).filter(part => part.size > 0);
        const sum = parts.reduce((n, part) => n + part.size, 0);
        const inks = ['s1', 's2', 's3', 's4', 's5', 's6', 's7'];
        const bar = h('div', { class: 'memory', role: 'img', 'aria-label': parts.map(p => `${p.word} ${bytes(p.size)}`).join(', ') });
        const legend = h('ul', { class: 'memory-legend' });
        parts.forEach((part, i) => {
            const piece = h('span', { title: `${part.word} ${bytes(part.size)}` });
            piece.style.width = `${100 * part.size / sum}%`;
            piece.style.background = colour(inks[i % inks.length]);
            bar.append(piece);
            const dot = h('span', { class: 'dot' });
            dot.style.background = colour(inks[i % inks.length]);
            legend.append(h('li', null, dot, part.word, h('span', { class: 'muted' }, bytes(part.size))));
        });
        return h('div', { class: 'stack' }, h('p', { class: 'small' }, h('b', null, bytes(plan.total_bytes)), ` on its device: ${count(plan.parameters)} parameters, ${plan.scored_samples ? `${count(plan.scored_samples)} samples to score`
            : `${count(plan.steps)} steps${plan.steps_per_epoch ? ` of ${count(plan.steps_per_epoch)} an epoch` : ''}, a checkpoint of ${bytes(plan.checkpoint_bytes)}`}`), bar, legend);
    }

    /** @param {any} answer */
    function good(answer) {
        ({ plan } = answer);
        formula.tried(answer);
        const { queue } = answer;
        fill(verdict, h('div', { class: 'card pad stack' },
            h('p', null, h('b', { class: 'good' }, 'Valid.'), ` ${count(answer.runs)} run${answer.runs === 1 ? '' : 's'}${answer.points > 1 ? ` (${count(answer.points)} combinations${answer.trials > 1 ? ` × ${answer.trials} trials` : ''})` : answer.trials > 1 ? ` (${answer.trials} trials)` : ''}; ${ queue.position === 0 ? 'it would start at once.' : `it would wait at place ${queue.position}${queue.reason ? `: ${queue.reason}` : ''}.`}`),
            answer.warnings.length > 0 && h('ul', { class: 'problems', data: { tone: 'warn' } }, answer.warnings.map(place)),
            answer.plan_error && h('p', { class: 'note' }, `No memory plan: ${answer.plan_error}`), memoryBar()));
    }

    /** @param {unknown} error */
    function bad(error) {
        plan = null;
        const { errors = [] } = /** @type {import('../api.js').ApiError} */ (error);
        fill(verdict, h('div', { class: 'note', data: { tone: 'bad' } }, h('p', null, h('b', null, message(error))),
            errors.length > 0 && h('ul', { class: 'problems' }, errors.map(place))));
    }

    let turn = 0;
    let timer = 0;
    async function check() {
        clearTimeout(timer);
        wrong = [];
        quick.show();
        formula.show();
        const mine = ++turn;
        key = '';
        try {
            JSON.parse(editor.value);
        } catch (error) {
            submit.disabled = true;
            const at = /position (\d+)/.exec(message(error));
            if (at)
                wrong = [[Number(at[1]), Number(at[1]) + 1]];
            number();
            fill(verdict, h('div', { class: 'note', data: { tone: 'bad' } }, h('p', null, h('b', null, 'Not JSON yet: '), message(error), ' ',
                at && h('button', { type: 'button', class: 'link', on: { click: () => show([Number(at[1]), Number(at[1]) + 1]) } }, `Show line ${lineOf(editor.value, Number(at[1])).line}`))));
            return;
        }
        try {
            const answer = await tryJob(editor.value, signal);
            if (mine === turn) {
                submit.disabled = false;
                number();
                good(answer);
            }
        } catch (error) {
            if (isAbort(error) || mine !== turn)
                return;
            submit.disabled = true;
            wrong = (/** @type {import('../api.js').ApiError} */ (error).errors ?? []).map(problem => stretchOf(editor.value, problem.pointer ?? '')).filter(([from, to]) => to > from);
            number();
            bad(error);
        }
    }
    editor.addEventListener('input', () => {
        wrong = [];
        number();
        clearTimeout(timer);
        timer = setTimeout(check, 500);
    });
    editor.addEventListener('keydown', event => {
        if (event.key === 'Enter' && (event.ctrlKey || event.metaKey))
            submit.click();
    });
    editor.addEventListener('scroll', () => {
        lines.scrollTop = paint.scrollTop = editor.scrollTop;
        paint.scrollLeft = editor.scrollLeft;
    });
    signal.addEventListener('abort', () => clearTimeout(timer));

    start.addEventListener('change', () => {
        if (start.value !== '')
            put(pretty(starts[Number(start.value)].document));
        start.value = '';
    });
    tidy.addEventListener('click', () => {
        try {
            put(pretty(JSON.parse(editor.value)));
        } catch {
            check();
        }
    });
    submit.addEventListener('click', async () => {
        submit.disabled = true;
        // The same key with the same text: pressing twice, or again after a break, makes one job.
        key ||= crypto.randomUUID?.() ?? `page-${Date.now()}-${Math.random()}`;
        try {
            const job = await submitJob(editor.value, key);
            toast(`Job #${job.id} accepted: ${job.name}`);
            location.hash = job.runs.total > 1 ? `#/jobs/${job.id}` : `#/?job=${job.id}`;
        } catch (error) {
            submit.disabled = false;
            bad(error);
        }
    });

    // ---- what each setting means ----
    function drawFields() {
        const text = find.value.trim().toLowerCase();
        context.setQuery({ find: find.value.trim() });
        const shown = fields.filter(f => !text || `${f.pointer.replaceAll('/', '.')} ${f.meaning} ${(f.values ?? []).join(' ')}`.toLowerCase().includes(text));
        fill(list, shown.map(f => {
            const can = Array.isArray(f.available) ? f.available : f.values;
            const range = f.minimum !== undefined || f.maximum !== undefined ? `${f.minimum ?? ''} to ${f.maximum ?? ''}` : '';
            return h('div', { class: 'setting' },
                h('button', { type: 'button', class: 'link mono', title: 'Show it in the document', on: { click: () => show(stretchOf(editor.value, f.pointer)) } }, f.pointer.slice(1).replaceAll('/', '.')),
                h('span', { class: 'muted small' }, ` ${f.type}${range ? `, ${range}` : ''}${f.default !== undefined && f.default !== null && f.default !== '' && f.default !== 'default' ? ` · default ${short(f.default)}` : ''}`),
                h('p', { class: 'small' }, f.meaning), can && can.length > 0 && h('p', { class: 'small mono muted' }, can.join(' · ')));
        }), shown.length === 0 && h('p', { class: 'muted small pad' }, 'No setting matches.'));
    }
    find.addEventListener('input', drawFields);
    onTheme(() => plan && check(), signal);

    /**
     * @param {string} subject a run, or "model:version"
     * @param {string | null} step
     */
    async function beginWith(subject, step) {
        const at = subject.lastIndexOf(':');
        const model = at < 0 ? undefined : (await listModels(signal)).find(m => m.name === subject.slice(0, at));
        const version = model?.versions.find(v => v.version === subject.slice(at + 1));
        if (at >= 0 && !version)
            throw new Error(`There is no version ${subject}.`);
        const run = version ? version.runId : subject;
        const source = run ? await getRun(run, signal) : null;
        const job = source?.run.jobId ? await getJob(source.run.jobId, signal) : null;
        // Weights that no run wrote describe their network alone: a data set stands in for the reader's own.
        const document = source && job ? (job.runs === 1 && !job.document.template ? job.document : source.document)
            : { data: { dataset: version?.source.tokenizer ? 'text_gen' : 'digits_gen' }, train: { epochs: 1 } };
        const start = version ? { model: subject } : { run: subject, checkpoint: step ? Number(step) : 'best' };
        const name = version ? `from ${subject}` : `from run ${subject}${step ? `, step ${step}` : ''}`;
        fill(begun, h('p', null, version ? `This job starts from the weights of ${subject}${run ? '' : ' and uses its network; set the data'}.`
            : `This job starts from the weights of run ${subject}, ${step ? `step ${step}` : 'best checkpoint'}. Set the epochs and the data.`),
        version ? null : h('label', { class: 'inline wraps' }, goOn, h('span', null, 'Also load the optimiser state, to continue the run. Schedule, sample order and step count start at 0.')));
        begun.hidden = false;
        put(pretty(continuation(document, { ...start, ...version ? {} : { optimizer: false } }, name)));
    }
    const begun = h('div', { class: 'card pad stack small', role: 'note', hidden: true });
    const goOn = h('input', { type: 'checkbox' });
    goOn.addEventListener('change', () => {
        try {
            const document = JSON.parse(editor.value);
            document.train.start.optimizer = goOn.checked;
            put(pretty(document));
        } catch {
            goOn.checked = !goOn.checked; // the document is being written
        }
    });
    el.querySelector('.write')?.before(begun);

    async function begin() {
        const run = query.get('run');
        const job = query.get('job');
        const subject = query.get('evaluate');
        try {
            if (subject) {
                put(pretty(evaluation(subject, query.get('checkpoint'))));
                return;
            }
            const began = query.get('start');
            if (began) {
                await beginWith(began, query.get('checkpoint'));
                return;
            }
            const from = run ? await getRun(run, signal) : null;
            const id = job ?? from?.run.jobId ?? null;
            const whole = id ? await getJob(id, signal) : null;
            // Of a sweep one edits what this one run was.
            put(pretty(from && whole && whole.runs > 1 ? from.document : whole?.document ?? starts[0].document));
        } catch (error) {
            if (isAbort(error))
                return;
            toast(message(error), 'bad');
            put(pretty(starts[0].document));
        }
    }
    begin();
    listFields(signal).then(answer => {
        ({ fields } = answer);
        // What people set most comes first, then the groups in the order of a document; the rest as the server lists it.
        const rank = (/** @type {string} */ pointer) => (often.includes(pointer) ? often.indexOf(pointer) : 100 + Math.max(0, groupOrder.indexOf(pointer.split('/')[1]) + (pointer.split('/').length > 2 ? 0 : 50)));
        fields = fields.map((f, i) => ({ f, i })).sort((a, b) => rank(a.f.pointer) - rank(b.f.pointer) || a.i - b.i).map(({ f }) => f);
        drawFields();
        quick.know(fields);
    }).catch(error => {
        if (!isAbort(error))
            fill(list, h('p', { class: 'note', data: { tone: 'bad' } }, message(error)));
    });
    return { el };
}
