// Registered models with their versions, and a box to try the one that is loaded: a pad for images, a prompt for text.
import { isAbort, listModels, moveModel, setAlias, uploadModel, versionFile } from '../api.js';
import { deleteVersion } from '../away.js';
import { ask, bones, failedBox, fill, h, icon, message, setText, snippet, stateBox, toast } from '../dom.js';
import { ago, bytes, count, moment } from '../format.js';
import { onEvent, pacer } from '../live.js';
import { fieldBox } from '../models/field.js';
import { imageBox } from '../models/image.js';
import { labelBox } from '../models/label.js';
import { textBox } from '../models/text.js';
import { chip } from '../states.js';

/** @typedef {import('../types').Model} Model */
/** @typedef {import('../types').ModelVersion} ModelVersion */

/**
 * @param {import('../types').ViewContext} context
 * @returns {import('../types').View}
 */
export function modelsView(context) {
    const { signal } = context;
    const asked = context.params[0] ?? null;
    context.setTitle(asked ?? 'Models');
    /** @type {Model[]} */
    let models = [];
    let ready = false;

    const summary = h('p', { class: 'sub' });
    const place = h('div', null, h('div', { class: 'card' }, bones(6)));
    const list = h('ul', { class: 'card model-list', 'aria-label': 'Models' });
    const side = h('div', { class: 'stack-l' });
    const grid = h('div', { class: 'model-grid' }, list, side);
    const el = h('div', null, h('div', { class: 'head' }, h('div', null, h('h1', null, 'Models'), summary),
        h('div', { class: 'row' }, h('button', { type: 'button', on: { click: () => upload() } }, icon('plus', 12), 'Upload weights'))), place);

    /** What the box shows stays as it is while the lists refresh. @type {{key: string, el: HTMLElement} | null} */
    let box = null;
    let leaving = new AbortController();
    signal.addEventListener('abort', () => leaving.abort());

    function draw() {
        if (models.length === 0) {
            setText(summary, '');
            fill(place, h('div', { class: 'card' }, stateBox('empty', 'No models yet',
                'A model is registered when a job with "register" succeeds, or by hand: open a run that has ended and choose “Register model”. Weights of other programs come in by “Upload weights”. Or by curl:',
                snippet(`curl ${location.origin}/api/v1/models/my-model/versions -H 'Content-Type: application/json' -d '{"run_id": "1"}'`))));
            return;
        }
        const loaded = models.filter(model => model.versions.some(v => v.state === 'READY')).length;
        setText(summary, `${models.length} registered, ${loaded} loaded`);
        if (!grid.isConnected)
            fill(place, grid);
        const chosen = models.find(model => model.name === asked) ?? (asked === null ? models[0] : null);
        fill(list, models.map(model => h('li', null, h('a', {
            href: `#/models/${encodeURIComponent(model.name)}`, 'aria-current': model === chosen ? 'true' : null,
        }, h('span', { class: 'row' }, h('b', null, model.name), chip(bestState(model))),
        h('span', { class: 'muted small' }, `${model.versions.length} version${model.versions.length === 1 ? '' : 's'} · ${ago(model.versions[0]?.created)}`)))));
        if (!chosen) {
            fill(side, h('div', { class: 'card' }, stateBox('failed', `There is no model “${asked}”`, 'Choose one from the list.')));
            return;
        }
        drawModel(chosen);
    }

    /** @param {Model} model */
    function drawModel(model) {
        const ready_ = model.versions.filter(v => v.state === 'READY');
        const serving = ready_.find(v => v.version === context.query.get('v')) ?? ready_[0] ?? null;
        const key = serving ? `${model.name}:${serving.version}` : `${model.name}:none ${model.versions[0]?.version ?? ''}`;
        if (box?.key !== key) {
            leaving.abort();
            leaving = new AbortController();
            box = { key, el: serving ? tryBox(model, serving, leaving.signal, context) : notLoaded(model) };
        }
        const aliases = (/** @type {string} */ version) => Object.entries(model.aliases).filter(([, v]) => v === version).map(([name]) => h('span', { class: 'tag alias' }, name,
            h('button', { type: 'button', class: 'link', 'aria-label': `Remove the alias ${name}`, title: `Remove the alias ${name}`, on: { click: () => change(() => setAlias(model.name, name, null), `${name} removed`) } }, icon('close', 9))));
        const versions = h('section', { class: 'card scroll-x', tabindex: 0, 'aria-label': `Versions of ${model.name}` }, h('table', { class: 'table' },
            h('thead', null, h('tr', null, [['Version', ''], ['State', ''], ['From', ''], ['Step', 'num'], ['Size', 'num'], ['SHA-256', ''], ['Registered', ''], ['', 'num']].map(([name, cls]) =>
                h('th', { class: cls, scope: 'col' }, name || h('span', { class: 'hidden' }, 'Actions'))))),
            h('tbody', null, model.versions.map(v => h('tr', null,
                h('td', null, h('span', { class: 'row' }, `v${v.version}`, aliases(v.version),
                    h('button', { type: 'button', class: 'quiet small-button icon-button', 'aria-label': `Give version ${v.version} an alias`, title: 'Give it an alias', on: { click: () => nameIt(model, v) } }, icon('plus', 11)))),
                h('td', null, chip(v.state, v.reason || undefined)),
                h('td', null, originOf(v)),
                h('td', { class: 'num' }, count(v.step)),
                h('td', { class: 'num' }, bytes(v.bytes)),
                h('td', { class: 'mono', title: v.digest }, v.digest.slice(0, 12)),
                h('td', { class: 'nowrap', title: moment(v.created) }, ago(v.created)),
                h('td', { class: 'num' }, h('span', { class: 'row end' },
                    h('a', { class: 'button', href: versionFile(model.name, v.version, 'weights'), download: '', 'aria-label': `Weights of version ${v.version}, download`, title: 'The weights as safetensors, with the parameter names of timm or Hugging Face' }, 'Weights'),
                    h('a', { class: 'button', href: versionFile(model.name, v.version, 'file'), download: '', 'aria-label': `File of version ${v.version}, download`, title: 'The whole file, with the tokenizer' }, 'File'),
                    h('a', { class: 'button', href: `#/submit?start=${encodeURIComponent(`${model.name}:${v.version}`)}`, 'aria-label': `Fine-tune version ${v.version}`, title: 'A new job that begins with these weights: fine-tuning' }, 'Fine-tune'),
                    h('a', { class: 'button', href: `#/submit?evaluate=${encodeURIComponent(`${model.name}:${v.version}`)}`, 'aria-label': `Evaluate version ${v.version}` }, 'Evaluate'), v.state === 'READY' && v !== serving ? h('button', { type: 'button', on: { click: () => { context.setQuery({ v: v.version }); draw(); } } }, 'Try') : null, move(model, v),
                    h('button', { type: 'button', class: 'quiet icon-button', disabled: v.state !== 'UNAVAILABLE', 'aria-label': `Delete version ${v.version}`, title: v.state === 'UNAVAILABLE' ? 'Delete this version' : 'Unload it to delete it', on: { click: () => drop(model, v) } }, icon('trash')))))))));
        const reasons = model.versions.filter(v => v.reason && v.state !== 'READY').map(v => h('div', { class: 'note', data: { tone: 'bad' } }, `Version ${v.version}: ${v.reason}`));
        const focus = document.activeElement instanceof HTMLElement && side.contains(document.activeElement) ? document.activeElement : null;
        const children = [box.el, ...reasons, versions];
        if (side.firstElementChild === box.el) {
            while (side.children.length > 1)
                side.lastElementChild?.remove();
            side.append(...children.slice(1));
        } else {
            fill(side, children);
        }
        if (focus?.isConnected)
            focus.focus({ preventScroll: true });
    }

    async function upload() {
        let news = '';
        const done = await ask('Upload weights', [
            h('p', { class: 'muted' }, 'A safetensors file under the names of timm or Hugging Face becomes the next version of a model. A file that polyd wrote describes itself; otherwise name a preset or describe the network.'),
            h('label', { class: 'field' }, h('span', null, 'File'), h('input', { type: 'file', name: 'file', required: true, accept: '.safetensors' })),
            h('label', { class: 'field' }, h('span', null, 'Name of the model'), h('input', { type: 'text', name: 'name', required: true, maxlength: 128, pattern: '[A-Za-z0-9_\\-][A-Za-z0-9._\\-]*', autocomplete: 'off', value: asked ?? '' })),
            h('label', { class: 'field' }, h('span', null, 'Preset'), h('input', { type: 'text', name: 'preset', autocomplete: 'off', placeholder: 'gpt2, vit_base, …' })),
            h('label', { class: 'field' }, h('span', null, 'Description (JSON)'), h('textarea', { name: 'description', rows: 3, spellcheck: 'false', placeholder: '{"model": {"pool": "cls"}, "data": {"image_size": 224}}' })),
            h('label', { class: 'field' }, h('span', null, 'Tokenizer'), h('input', { type: 'text', name: 'tokenizer', autocomplete: 'off', placeholder: 'ROOT/FOLDER of vocab.json and merges.txt' }))], 'Upload', { act: async data => {
            const file = /** @type {File} */ (data.get('file')), text = (/** @type {string} */ key) => String(data.get(key) ?? '').trim();
            await uploadModel(text('name'), file, { preset: text('preset'), description: text('description'), tokenizer: text('tokenizer') });
            news = `${text('name')}: ${file.name} is registered`;
        } });
        if (!done)
            return;
        context.announce(news);
        await refresh();
    }

    /**
     * @param {Model} model
     * @param {ModelVersion} version
     */
    function move(model, version) {
        const action = version.state === 'READY' ? 'unload' : 'load';
        const button = h('button', { type: 'button', 'aria-label': `${action === 'load' ? 'Load' : 'Unload'} version ${version.version}` },
            action === 'load' ? 'Load' : 'Unload');
        button.disabled = version.state === 'LOADING' || version.state === 'UNLOADING';
        button.addEventListener('click', () => act(button, model, version, action));
        return button;
    }

    /**
     * @param {HTMLButtonElement} button
     * @param {Model} model
     * @param {ModelVersion} version
     * @param {'load' | 'unload'} action
     */
    async function act(button, model, version, action) {
        button.disabled = true;
        setText(button, action === 'load' ? 'Loading …' : 'Unloading …');
        try {
            await moveModel(model.name, version.version, action);
            context.announce(`${model.name} version ${version.version}: ${action}ed`);
        } catch (error) {
            toast(message(error), 'bad');
        }
        await refresh();
    }

    /**
     * @param {() => Promise<unknown>} act
     * @param {string} announcement
     */
    async function change(act, announcement) {
        try {
            await act();
            context.announce(announcement);
        } catch (error) {
            toast(message(error), 'bad');
        }
        await refresh();
    }

    /**
     * @param {Model} model
     * @param {ModelVersion} version
     */
    async function nameIt(model, version) {
        const data = await ask(`An alias for version ${version.version}`, [
            h('p', { class: 'muted' }, 'Requests may name an alias in place of a number, as in ', h('code', null, `${model.name}:production`), '. An existing alias is moved to this version.'),
            h('label', { class: 'field' }, h('span', null, 'Alias'), h('input', { type: 'text', name: 'alias', required: true, maxlength: 128, pattern: '[A-Za-z0-9._\\-]*[A-Za-z._\\-][A-Za-z0-9._\\-]*', title: 'Letters, digits, dot, dash and underscore; not a number', autocomplete: 'off' }))], 'Set the alias');
        if (data)
            await change(() => setAlias(model.name, String(data.get('alias')), version.version), `${data.get('alias')} is version ${version.version}`);
    }

    /**
     * @param {Model} model
     * @param {ModelVersion} version
     */
    async function drop(model, version) {
        const sure = await ask(`Delete version ${version.version} of ${model.name}?`, [
            version.runId
                ? h('p', null, 'The version is removed from the registry; its checkpoint is retained by run ', h('a', { href: `#/runs/${version.runId}` }, `#${version.runId}`), '.')
                : h('p', null, 'The version and its file are deleted.'),
            h('p', { class: 'muted' }, 'Its number is not reused.')], 'Delete the version', { danger: true, keep: 'Keep it' });
        if (sure)
            await change(() => deleteVersion(model.name, version.version), `Version ${version.version} of ${model.name} is deleted`);
    }

    /** @param {Model} model */
    function notLoaded(model) {
        const newest = model.versions[0];
        const button = h('button', { type: 'button', class: 'primary' }, `Load version ${newest?.version}`);
        button.addEventListener('click', () => act(button, model, newest, 'load'));
        return h('section', { class: 'card' }, stateBox('empty', `${model.name} is not loaded`, newest
            ? 'Load it into memory to try it here and to serve it over HTTP.' : 'It has no version yet.', newest && button));
    }

    async function refresh() {
        try {
            models = await listModels(signal);
            ready = true;
            draw();
        } catch (error) {
            if (!isAbort(error) && !ready)
                fill(place, h('div', { class: 'card' }, failedBox(error, 'The models', () => refresh())));
        }
    }
    const nudge = pacer(refresh, { least: 600, most: 1500,
        wanted: () => models.some(m => m.versions.some(v => v.state === 'LOADING' || v.state === 'UNLOADING')), signal });
    onEvent(event => {
        if (event.kind.startsWith('model'))
            nudge();
    }, signal);
    refresh();
    return { el };
}

/** Where a version came from. @param {ModelVersion} v */
function originOf(v) {
    if (v.runId)
        return h('a', { href: `#/runs/${v.runId}` }, `run #${v.runId}`);
    const mean = v.source.average ?? [];
    const words = { run: 'a run', upload: 'upload', root: `data root, ${v.source.path}`, average: `average of ${mean.length} checkpoints` };
    return h('span', { title: mean.length > 0 ? mean.map(a => a.model ?? `run #${a.run}, step ${a.step}`).join('; ') : v.source.tokenizer === 'ids' ? 'It has no tokenizer: prompts and completions are token ids.' : null },
        words[v.origin], v.source.tokenizer === 'ids' ? ' (token ids)' : '');
}

/** @param {Model} model */
function bestState(model) {
    const states = model.versions.map(v => v.state);
    return ['READY', 'LOADING', 'UNLOADING'].find(state => states.includes(state)) ?? 'UNAVAILABLE';
}

/**
 * @param {Model} model
 * @param {ModelVersion} version
 * @param {AbortSignal} signal
 * @param {import('../types').ViewContext} context
 */
function tryBox(model, version, signal, context) {
    const { signature } = version;
    if (signature?.kind === 'classifier')
        return imageBox(model, version, signal, context);
    if (signature?.kind === 'text_classifier')
        return labelBox(model, version, signal, context);
    if (signature?.kind === 'field')
        return fieldBox(model, version, signal, context);
    if (signature?.kind === 'language')
        return textBox(model, version, signal, context);
    return h('section', { class: 'card' }, stateBox('empty', 'This model cannot be tried here', 'The page supports classifiers of images or texts, solutions of equations and language models; use the API for others.'));
}
