// Attention by formula, as a card of the page that writes a job: the formulas as text, checked as one types, drawn with their
// slopes over the start's logits, with what is known before the run, their scalars, their texts for others, and a gallery. The
// document stays the truth: the card reads it and writes into it.
import { isAbort } from '../api.js';
import { fill, h, icon, message, setText, toast } from '../dom.js';
import { pretty } from '../example.js';
import { duration, number } from '../format.js';
import { checkFormula, listFormulas, tryStart } from '../jobs.js';
import { Picture } from '../picture.js';
import { withMember } from '../quick.js';
import { tokensOf } from '../run/attention.js';
import { colour } from '../theme.js';
import { formulaFigure, formulaSays, normalLogits } from './figures.js';
import { alone, beyondWords, builtinWords, entriesOf, facts, factored, named, pieces, scalarsOf, withEntries } from './words.js';

/** @typedef {import('./words.js').Entry} Entry */
/** @typedef {import('./words.js').Fault} Fault */

/** A start is tried unasked where its plan is below these. */
const SMALL = { parameters: 5e6, bytes: 1.5e9 };
const TYPING_MS = 250, IDLE_MS = 1500;

/**
 * @param {() => any} read the document, or undefined while it is no JSON
 * @param {(document: any) => void} write
 * @param {AbortSignal} signal
 */
export function formulaBox(read, write, signal) {
    /** @type {Entry[]} */
    let entries = [];
    let chosen = 0;
    /** Scalars that left the document while the chosen formula was being typed, until it is right. @type {import('./words.js').Scalars} */
    let aside = {};
    /** Whether those are the formula's own, not the document's. */
    let own = false;
    /** What the API says of the chosen one; null: it is wrong or not known yet. @type {any} */
    let answer = null;
    /** @type {Fault[]} */
    let faults = [];
    /** The last dry run of the whole document. @type {any} */
    let tried = null;
    /** What the start has shown, by the document that was tried. @type {Map<string, any>} */
    const starts = new Map();
    let range = '6';
    let typing = 0, idle = 0, turn = 0;
    let gallery = false;

    const list = h('div', { class: 'stack' });
    const says = h('div', { class: 'formula-says', role: 'status' });
    const scalars = h('div');
    const value = new Picture('φ(s)', { signal, file: 'formula' }), slope = new Picture('φ′(s)', { signal, file: 'formula-slope' });
    const beneath = h('p', { class: 'muted small' });
    const ranges = h('div', { class: 'segments', role: 'group', 'aria-label': 'Logits from and to' }, [['start', 'Start'], ['2', '±2'], ['6', '±6'], ['20', '±20']].map(([id, word]) =>
        h('button', { type: 'button', data: { id }, on: { click: () => { range = id; check(); } } }, word)));
    const tiles = h('dl', { class: 'tiles' });
    const norm = h('div', { class: 'stack' });
    const texts = h('div', { class: 'stack' });
    const known = h('div', { class: 'stack' }, h('div', { class: 'row' }, h('h2', { class: 'grow formula-title' }, 'Before the run'), ranges), h('div', { class: 'formula-charts' }, value.el, slope.el), beneath, norm, h('div', { class: 'card' }, tiles), texts);
    const add = h('button', { type: 'button', class: 'small-button', on: { click: () => put([...entries, { formula: 's^3/(1+abs(s))' }], entries.length) } }, icon('plus'), 'Compare with another formula');
    const shelf = h('div');
    const shelfBox = h('details', { on: { toggle: () => shelfBox.open && fillShelf() } }, h('summary', null, 'Gallery: 25 published formulas'), shelf);
    const empty = h('p', { class: 'row' }, h('button', { type: 'button', on: { click: () => put([{ formula: 's^3/sqrt(n)' }], 0) } }, 'Type an activation'));
    const body = h('div', { class: 'stack' }, h('p', { class: 'muted small' }, 'Attention weights as a function of the logit s: ', h('code', null, 'n'), ' is the N of the scale, ', h('code', null, 'rowsum(x)'), ' and ', h('code', null, 'rowmax(x)'),
        ' run over the keys of a row, other names are learned scalars. Several formulas make a sweep: one job, one page that compares them.'), empty, list, says, scalars, h('p', null, add), known, shelfBox);
    const el = h('details', { class: 'card pad formula-box' }, h('summary', null, h('b', null, 'Attention by formula')), body);

    const current = () => entries[chosen];

    /** Puts these into the document. @param {Entry[]} next @param {number} at the chosen one */
    function put(next, at = chosen) {
        const document = read();
        if (document === undefined)
            return;
        entries = next;
        chosen = Math.max(0, Math.min(at, next.length - 1));
        aside = {};
        own = false;
        drawList();
        write(withEntries(document, next));
        check();
    }

    /** @param {string} name @param {'init' | 'per' | 'form'} member @param {string} text */
    function setScalar(name, member, text) {
        const document = read(), entry = current();
        if (document === undefined || !entry)
            return;
        const all = scalarsOf(document, entry);
        /** @type {import('./words.js').Scalar} */
        const one = { ...all[name] };
        if (text === '')
            delete one[member];
        else
            Object.assign(one, { [member]: member === 'init' && Number.isFinite(Number(text)) ? Number(text) : text });
        const params = { ...all, [name]: one };
        if (entry.params) {
            put(entries.map((e, i) => (i === chosen ? { ...e, params } : e)));
        } else {
            write(withMember(document, '/attention/params', params));
            check();
        }
    }

    // ---- the formulas ----

    /** Puts what was typed into the document. */
    function typed() {
        const document = read(), entry = current();
        clearTimeout(typing);
        typing = 0;
        if (document !== undefined && entry) {
            own ||= entry.params !== undefined;
            const all = { ...aside, ...own ? entry.params : scalarsOf(document, entry) }, mine = named(entry.formula, all);
            aside = Object.fromEntries(Object.entries(all).filter(([name]) => !(name in mine)));
            if (own)
                entries[chosen] = { ...entry, params: mine };
            write(withEntries(own || Object.keys(mine).length === 0 ? document : withMember(document, '/attention/params', { ...document.attention?.params, ...mine }), entries));
        }
        check();
    }

    /** @param {number} i */
    function row(i) {
        const field = h('textarea', { rows: 1, spellcheck: 'false', autocomplete: 'off', autocapitalize: 'off', 'aria-label': entries.length > 1 ? `Formula ${i + 1}` : 'Formula' });
        const paint = h('div', { class: 'formula-paint', 'aria-hidden': 'true' });
        field.value = entries[i].formula;
        const fit = () => {
            field.style.height = 'auto';
            field.style.height = `${Math.max(36, field.scrollHeight + 2)}px`;
        };
        const draw = () => {
            const marks = i === chosen ? faults.length > 0 ? faults : answer?.warnings ?? [] : [], word = faults.length > 0 ? 'wrong' : 'warned';
            fill(paint, pieces(field.value, marks).map(p => (p.bad ? h('span', { class: word }, p.text) : p.text)), '\u200b');
            fit();
        };
        field.addEventListener('keydown', event => {
            if (event.key === 'Enter' && !event.ctrlKey && !event.metaKey)
                event.preventDefault();
        });
        field.addEventListener('focus', () => choose(i));
        field.addEventListener('input', () => {
            faults = [];
            entries[i] = { ...entries[i], formula: field.value.replace(/\n/g, ' ') };
            draw();
            clearTimeout(typing);
            typing = setTimeout(typed, TYPING_MS);
        });
        /* Before another field writes the document, or it is submitted. */
        field.addEventListener('blur', () => typing && typed());
        const pick = h('input', { type: 'radio', name: 'formula', 'aria-label': `Show formula ${i + 1}`, checked: i === chosen, on: { change: () => choose(i) } });
        const drop = h('button', { type: 'button', class: 'quiet icon-button', 'aria-label': entries.length > 1 ? `Remove formula ${i + 1}` : 'Remove the formula', title: 'Remove', on: { click: () => put(entries.filter((_, k) => k !== i)) } }, icon('close'));
        requestAnimationFrame(draw);
        return { el: h('div', { class: 'formula-row' }, entries.length > 1 ? pick : h('span'), h('div', { class: 'formula-field' }, paint, field), drop), field, draw, pick };
    }

    /** @type {ReturnType<typeof row>[]} */
    let rows = [];
    function drawList() {
        const at = rows.findIndex(r => r.field === window.document.activeElement), place = at >= 0 ? rows[at].field.selectionStart : 0;
        rows = entries.map((_, i) => row(i));
        fill(list, rows.map(r => r.el));
        empty.hidden = entries.length > 0;
        add.hidden = known.hidden = entries.length === 0;
        if (at >= 0 && rows[at]) {
            rows[at].field.focus({ preventScroll: true });
            rows[at].field.setSelectionRange(place, place);
        }
    }

    /** @param {number} i */
    function choose(i) {
        if (chosen === i)
            return;
        chosen = i;
        aside = {};
        own = false;
        faults = [];
        rows.forEach((r, k) => { r.pick.checked = k === i; });
        check();
    }

    // ---- what the API says ----

    const keyOf = () => {
        const document = read(), entry = current();
        return document === undefined || !entry ? '' : JSON.stringify(alone(document, entry));
    };
    const start = () => starts.get(keyOf()) ?? null;
    /** Logits of any start of this page: those of a formula that is not tried yet are much the same. */
    const logits = () => (start() ?? [...starts.values()].at(-1))?.start?.layers?.[0]?.logits ?? null;

    /** Sizes that the formula reads: of the dry run, else of the document. */
    function sizes() {
        const resolved = tried?.document ?? {}, { model = {} } = resolved;
        const heads = Number(Array.isArray(model.heads) ? model.heads[0] : model.heads) || 1, width = Number(Array.isArray(model.width) ? model.width[0] : model.width) || 64 * heads;
        const keys = tokensOf(resolved) ?? 64, n = Math.round(tried?.plan?.n_for_scale) || keys;
        const layers = Array.isArray(model.depth) ? model.depth.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0) : Number(model.depth) || 1;
        return { n: Math.min(4096, Math.max(1, n)), keys: Math.min(4096, keys), heads, layers, width: Math.max(1, Math.round(width / heads)), causal: model.arch === 'gpt' };
    }

    async function check() {
        clearTimeout(typing);
        const document = read(), entry = current(), mine = ++turn;
        if (document === undefined || !entry)
            return;
        const all = scalarsOf(document, entry), measured = logits();
        const reach = range === 'start' && measured ? 1.3 * Math.max(-measured.low, measured.high) : Number(range) || 6;
        const params = Object.fromEntries(Object.entries(named(entry.formula, all)).map(([name, p]) => [name, { ...p.init === undefined ? {} : { init: p.init }, ...p.form ? { form: p.form } : {}, ...p.per ? { per: p.per } : {} }]));
        try {
            const got = await checkFormula({ formula: entry.formula, params, ...sizes(), ...measured ? { logits: measured } : {}, from: -reach, to: reach, samples: 241 }, signal);
            if (mine !== turn)
                return;
            answer = got;
            faults = [];
            if (!typing) {
                aside = {};
                own = false;
            }
            wait();
        } catch (error) {
            if (isAbort(error) || mine !== turn)
                return;
            answer = null;
            const { errors = [] } = /** @type {any} */ (error);
            faults = errors.filter((/** @type {any} */ e) => e.pointer === '#/formula' && e.at !== undefined).map((/** @type {any} */ e) => ({ at: e.at, length: e.length ?? 1, text: e.detail }));
            fill(says, faults.length > 0 ? faults.map(f => h('p', null, h('b', null, `Character ${f.at + 1}: `), f.text)) : h('p', null, message(error)));
            says.dataset.tone = 'bad';
        }
        draw();
    }

    /** After a while without typing a small network is tried. */
    function wait() {
        clearTimeout(idle);
        const { plan } = tried ?? {};
        if (answer && !start() && plan?.total_bytes < SMALL.bytes && plan?.parameters < SMALL.parameters)
            idle = setTimeout(measure, IDLE_MS);
    }

    let measuring = '';
    async function measure() {
        const document = read(), entry = current(), key = keyOf();
        if (document === undefined || !entry || measuring || starts.has(key))
            return;
        measuring = key;
        draw();
        try {
            const got = await tryStart(pretty(alone(document, entry)), signal);
            starts.set(key, got);
        } catch (error) {
            if (isAbort(error))
                return;
            starts.set(key, { start: null, start_error: message(error) });
        }
        measuring = '';
        check();
    }

    // ---- drawing ----

    function draw() {
        rows.forEach(r => r.draw());
        for (const button of ranges.querySelectorAll('button')) {
            button.setAttribute('aria-pressed', String(button.dataset.id === range));
            if (button.dataset.id === 'start')
                button.disabled = !logits();
        }
        known.hidden = !answer;
        drawScalars();
        if (!answer)
            return;
        const builtin = builtinWords(answer.builtin), warnings = /** @type {Fault[]} */ (answer.warnings);
        says.dataset.tone = warnings.length > 0 ? 'warn' : '';
        const own = 'it runs by the formula’s own program, interpreted on a CPU, compiled on a GPU.';
        fill(says, warnings.map(w => h('p', null, h('b', null, `Character ${w.at + 1}: `), w.text)),
            h('p', { class: 'muted' }, !builtin ? `No built-in activation: ${own}` : read()?.attention?.recognise === false ? `It equals the built-in ${builtin}, but attention.recognise is off: ${own}` : `Recognised: it runs as the built-in ${builtin}.`));
        const measured = logits(), under = measured ?? normalLogits(1);
        value.show({ make: width => formulaFigure(answer.samples, 'value', under, { title: `φ(s) = ${answer.formula}`, width: Math.min(width, 700), ink: colour('s2'), bar: colour('s1') }), says: formulaSays(answer.samples, 'value') });
        slope.show({ make: width => formulaFigure(answer.samples, 'slope', under, { title: `slope of ${answer.formula}`, width: Math.min(width, 700), ink: colour('s3'), bar: colour('s1') }), says: formulaSays(answer.samples, 'slope') });
        setText(beneath, `${measured ? `Bars: logits of the first layer at the start, from ${number(measured.low)} to ${number(measured.high)}.` : 'Bars: logits of deviation 1, until the start has been tried.'}${answer.row_functions > 0 ? ' The other keys of the row have logit 0.' : ''}`);
        drawNorm();
        fill(tiles, facts(answer).map(([title, text, note]) => h('div', { class: 'tile' }, h('dt', null, title), h('dd', null, text, note ? h('small', null, ` ${note}`) : null))));
        drawTexts();
    }

    function drawScalars() {
        const document = read(), entry = current(), names = /** @type {{name: string}[]} */ (answer?.params ?? []).map(p => p.name);
        if (names.length === 0 || document === undefined || !entry) {
            fill(scalars);
            scalars.dataset.names = '';
            return;
        }
        const all = scalarsOf(document, entry);
        if (scalars.dataset.names !== names.join()) {
            scalars.dataset.names = names.join();
            const pick = (/** @type {string} */ name, /** @type {'per' | 'form'} */ member, /** @type {string[]} */ words) => h('select', { 'aria-label': `${member} of ${name}`, data: { scalar: name, member }, on: { change: (/** @type {Event} */ e) => setScalar(name, member, /** @type {HTMLSelectElement} */ (e.target).value) } },
                words.map(word => h('option', { value: word }, word)));
            fill(scalars, h('div', { class: 'scroll-x', tabindex: 0, role: 'region', 'aria-label': 'Learned scalars' }, h('table', { class: 'formula-scalars' }, h('thead', null, h('tr', null, ['Learned scalar', 'starts at', 'one for each', 'trained as'].map(word => h('th', { scope: 'col' }, word)))),
                h('tbody', null, names.map(name => h('tr', null, h('td', null, h('code', null, name)),
                    h('td', null, h('input', { type: 'text', 'aria-label': `init of ${name}`, placeholder: '1', data: { scalar: name, member: 'init' }, on: { change: (/** @type {Event} */ e) => setScalar(name, 'init', /** @type {HTMLInputElement} */ (e.target).value) } })),
                    h('td', null, pick(name, 'per', ['layer', 'head', 'global'])), h('td', null, pick(name, 'form', ['direct', 'log', 'softplus', 'sigmoid']))))))));
        }
        for (const input of /** @type {NodeListOf<HTMLInputElement>} */ (scalars.querySelectorAll('[data-scalar]'))) {
            const one = all[input.dataset.scalar ?? ''] ?? {}, member = /** @type {'init' | 'per' | 'form'} */ (input.dataset.member);
            const text = String(one[member] ?? (member === 'per' ? 'layer' : member === 'form' ? 'direct' : ''));
            if (input !== window.document.activeElement)
                input.value = text;
        }
    }

    /** The size of A, and the constant that puts it at softmax's ceiling. */
    function drawNorm() {
        const got = start(), from = got?.formula ?? answer, ceiling = number(from.ceiling);
        const how = from.norm_from === 'start' ? `measured at step 0, mean over ${got.start.layers.length} layers` : from.norm_from === 'logits' ? 'by quadrature over the start’s logits' : 'for logits of deviation 1';
        const { scalar_to_ceiling: scalar, factor_to_ceiling: factor } = from;
        const text = scalar && (typeof scalar.init === 'number' ? String(Number(scalar.init.toPrecision(4))) : scalar.init);
        const take = scalar ? h('button', { type: 'button', class: 'small-button', on: { click: () => {
            setScalar(scalar.name, 'init', text);
            toast(`${scalar.name} starts at ${text}`);
        } } }, `Start ${scalar.name} at ${typeof scalar.init === 'number' ? number(scalar.init) : text}`) : factor ? h('button', { type: 'button', class: 'small-button', on: { click: () => {
            const { name, formula } = factored(current().formula, answer.params.map((/** @type {any} */ p) => p.name)), document = read();
            put(entries.map((e, i) => (i === chosen ? { ...e, formula, params: { ...scalarsOf(document, e), [name]: { init: Number(factor.toPrecision(4)) } } } : e)));
        } } }, 'Multiply by a learned scalar that starts there') : null;
        const seconds = got?.start?.step_s, steps = tried?.plan?.steps;
        fill(norm, h('p', null, h('b', null, `‖A‖ ≈ ${number(from.norm)}`), ` at the start (${how}); softmax’s ceiling is √N = ${ceiling}.`, from.norm_growth === null ? '' : [' It grows as N', h('sup', null, String(Number(from.norm_growth.toFixed(2)))), '.'], ` Of the pairs: ${beyondWords(from.beyond)}.`),
            factor ? h('p', { class: 'row' }, h('span', null, `A factor of ${number(factor)} puts it at √N.`), take) : null,
            seconds && steps ? h('p', { class: 'small' }, `A step took ${duration(seconds)} here just now: about ${duration(seconds * steps)} for ${number(steps)} steps, without evaluations.`) : null,
            got?.start?.layers?.some((/** @type {any} */ l) => l.broken > 0) ? h('p', { class: 'note', data: { tone: 'bad' } }, 'Some entries of A or of its slope are not finite at the start.') : null,
            got?.start_error ? h('p', { class: 'note' }, `The start could not be tried: ${got.start_error}`) : null,
            got ? null : h('p', { class: 'row small muted' }, measuring ? 'Trying the start…' : h('button', { type: 'button', class: 'small-button', on: { click: measure } }, 'Try the start'), measuring ? null : 'runs the network once, to measure its logits and the norm'));
    }

    /** @type {string} */
    let shown = '';
    function drawTexts() {
        if (shown === answer.canonical + answer.torch)
            return;
        shown = answer.canonical + answer.torch;
        const text = (/** @type {string} */ title, /** @type {string | null} */ content, /** @type {string} */ why) => h('details', null, h('summary', null, title), content === null ? h('p', { class: 'muted small' }, why) : [h('p', { class: 'row' }, h('span', { class: 'grow' }),
            h('button', { type: 'button', class: 'small-button', on: { click: () => navigator.clipboard.writeText(content).then(() => toast(`${title} copied`), () => toast('Select the text and copy it.', 'bad')) } }, icon('copy'), 'Copy')), h('pre', { class: 'formula-text', tabindex: 0, 'aria-label': title }, content)]);
        fill(texts, text('As LaTeX', answer.latex, 'The text would be too long.'), text('As a PyTorch function', answer.torch, 'The text would be too long.'), text('For PyTorch’s FlexAttention', answer.flex, answer.flex_why ?? ''),
            text('In its normal form', answer.canonical === null ? null : `${answer.canonical}\nSHA-256 ${answer.digest}`, 'The text would be too long.'));
    }

    async function fillShelf() {
        if (gallery)
            return;
        gallery = true;
        try {
            const formulas = /** @type {any[]} */ (await listFormulas(signal));
            fill(shelf, h('ul', { class: 'gallery' }, formulas.map(f => {
                const entry = () => ({ formula: f.formula, ...Object.keys(f.params).length > 0 ? { params: f.params } : {} });
                return h('li', null, h('b', null, f.name), h('code', null, f.formula), h('span', { class: 'small' }, f.text), h('span', { class: 'muted small' }, f.source, f.causal ? ' · for texts' : ''), h('span', { class: 'row' },
                    h('button', { type: 'button', class: 'small-button', 'aria-label': `Use ${f.name}`, on: { click: () => put(entries.length > 1 ? entries.map((e, i) => (i === chosen ? entry() : e)) : [{ ...entry(), params: f.params }]) } }, 'Use'),
                    entries.length > 0 ? h('button', { type: 'button', class: 'small-button', 'aria-label': `Add ${f.name}`, on: { click: () => put([...entries, entry()], entries.length) } }, 'Add') : null));
            })));
        } catch (error) {
            gallery = false;
            if (!isAbort(error))
                fill(shelf, h('p', { class: 'note', data: { tone: 'bad' } }, message(error)));
        }
    }

    signal.addEventListener('abort', () => {
        clearTimeout(typing);
        clearTimeout(idle);
    });
    drawList();

    let before = '';
    return {
        el,
        /** Takes the formulas over from the document. */
        show() {
            const document = read();
            el.hidden = typeof document?.kind === 'string' && document.kind !== 'train';
            if (document === undefined)
                return;
            const next = entriesOf(document), text = JSON.stringify([next, document.attention?.params ?? null, document.attention?.recognise ?? null]);
            if (text === before)
                return;
            before = text;
            if (JSON.stringify(next) !== JSON.stringify(entries)) {
                entries = next;
                chosen = Math.min(chosen, Math.max(0, next.length - 1));
                drawList();
            }
            if (next.length > 0)
                el.open = true;
            check();
        },
        /** What a dry run of the document says. @param {any} result */
        tried(result) {
            const first = tried === null;
            tried = result;
            if (first)
                check();
            else
                wait();
        },
    };
}
