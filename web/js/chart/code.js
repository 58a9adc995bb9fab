// A figure as the code that draws it again: for LaTeX with pgfplots, and for Python with matplotlib. Numbers, colours, ticks and
// ranges are those of the figure. Pure functions.

/** @typedef {import('./figure.js').Figure} Figure */

/** @param {number | null} v */
const short = v => (v === null || !Number.isFinite(v) ? 'nan' : String(+v.toPrecision(7)));

/** @param {string} ink "#rrggbb" or "rgb(r g b)" */
function hexOf(ink) {
    if (/^#[0-9a-f]{6}$/i.test(ink))
        return ink.slice(1).toUpperCase();
    return (ink.match(/\d+/g) ?? ['0', '0', '0']).slice(0, 3).map(part => Number(part).toString(16).padStart(2, '0')).join('').toUpperCase();
}

// ---- pgfplots ----

/** What stands for a sign in TeX. @type {Record<string, string>} */
const signs = { '\\': '\\textbackslash{}', '‖': '$\\|$', φ: '$\\varphi$', '×': '$\\times$', '−': '$-$', '±': '$\\pm$', '√': '$\\surd$', '°': '$^\\circ$', '·': '$\\cdot$', '∞': '$\\infty$', '~': '\\textasciitilde{}', '^': '\\textasciicircum{}' };

/** @param {string} text */
const tex = text => text.replace(/[&%$#_{}]|[\\‖φ×−±√°·∞~^]/g, sign => signs[sign] ?? `\\${sign}`);

/** @type {Record<string, string>} */
const texMarks = { circle: '*', square: 'square*', triangle: 'triangle*', diamond: 'diamond*', cross: 'x', ring: 'o', bar: '-' };

/** @param {number[]} dash */
const texDash = dash => (dash.length ? `, dash pattern=${dash.map((n, i) => `${i % 2 ? 'off' : 'on'} ${n}pt`).join(' ')}` : '');

/** @param {Figure} figure */
export function toPgfplots({ title, width, height, x, y, lines, marks = [], rules = [] }) {
    const colours = [...new Set([...lines, ...marks].map(part => hexOf(part.ink)))];
    const colour = (/** @type {string} */ ink) => `polyd${String.fromCharCode(65 + colours.indexOf(hexOf(ink)))}`;
    const axis = (/** @type {string} */ name, /** @type {import('./figure.js').Axis} */ a) => [`${name}label={${tex(a.title)}}`, `${name}min=${short(a.low)}, ${name}max=${short(a.high)}`, ...(a.log ? [`${name}mode=log`] : []),
        `${name}tick={${a.ticks.map(t => short(t.at)).join(',')}}, ${name}ticklabels={${a.ticks.map(t => `{${tex(t.word)}}`).join(',')}}`];
    const points = (/** @type {[number, number | null][]} */ list) => list.map(([px, py]) => `(${short(px)},${short(py)})`).join(' ');
    const out = ['% \\usepackage{pgfplots} \\pgfplotsset{compat=1.16}', ...colours.map((hex, i) => `\\definecolor{polyd${String.fromCharCode(65 + i)}}{HTML}{${hex}}`), '\\begin{tikzpicture}',
        `\\begin{axis}[title={${tex(title)}}, width=${short(width / 50)}cm, height=${short(height / 50)}cm, unbounded coords=jump, grid=major, legend cell align=left, legend style={draw=none, font=\\small},`,
        `  ${[...axis('x', x), ...axis('y', y)].join(',\n  ')}]`];
    for (const line of lines) {
        if (line.band && line.band.length > 1)
            out.push(`\\addplot [draw=none, fill=${colour(line.ink)}, fill opacity=.14, forget plot] coordinates {${points([...line.band.map(([px, , high]) => /** @type {[number, number]} */ ([px, high])), ...line.band.slice().reverse().map(([px, low]) => /** @type {[number, number]} */ ([px, low]))])}};`);
        if (line.points.length > 0)
            out.push(`\\addplot [${colour(line.ink)}, line width=${short((line.width ?? 1.6) * .6)}pt${texDash(line.dash)}${line.alpha ? `, opacity=${line.alpha}` : ''}${line.unnamed || !line.name ? ', forget plot' : ''}] coordinates {${points(line.points)}};`);
        if (line.points.length > 0 && line.name && !line.unnamed)
            out.push(`\\addlegendentry{${tex(line.name)}}`);
    }
    for (const mark of marks)
        out.push(`\\addplot [only marks, ${colour(mark.ink)}, mark=${mark.hollow && mark.shape === 'circle' ? 'o' : texMarks[mark.shape] ?? '*'}, mark size=${short(mark.size * .6)}pt, forget plot${mark.sd ? ', error bars/.cd, y dir=both, y explicit' : ''}] coordinates {(${short(mark.x)},${short(mark.y)})${mark.sd ? ` +- (0,${short(mark.sd)})` : ''}};`);
    for (const { at, word } of rules)
        out.push(`\\draw [dashed, gray] ({axis cs:${short(at)},${short(y.low)}}|-{rel axis cs:0,0}) -- ({axis cs:${short(at)},${short(y.low)}}|-{rel axis cs:0,1}) node [pos=0.05, right] {${tex(word)}};`);
    return `${[...out, '\\end{axis}', '\\end{tikzpicture}'].join('\n')}\n`;
}

// ---- matplotlib ----

/** @type {Record<string, string>} */
const pyMarks = { circle: 'o', square: 's', triangle: '^', diamond: 'D', cross: 'x', ring: 'o', bar: '_' };

/** A text as Python writes it. @param {string} text */
const py = text => JSON.stringify(text);

/** @param {(number | null)[]} values */
const pyList = values => `[${values.map(short).join(', ')}]`;

/** @param {Figure} figure */
export function toMatplotlib({ title, width, height, x, y, lines, marks = [], rules = [] }) {
    const out = ['import matplotlib.pyplot as plt', '', 'nan = float("nan")', `fig, ax = plt.subplots(figsize=(${short(width / 100)}, ${short(height / 100)}), layout="constrained")`];
    let named = false;
    for (const line of lines) {
        const colour = py(`#${hexOf(line.ink)}`);
        if (line.band && line.band.length > 1)
            out.push(`ax.fill_between(${pyList(line.band.map(b => b[0]))}, ${pyList(line.band.map(b => b[1]))}, ${pyList(line.band.map(b => b[2]))}, color=${colour}, alpha=0.14, linewidth=0)`);
        if (line.points.length === 0)
            continue;
        const label = line.name && !line.unnamed;
        named ||= Boolean(label);
        out.push(`ax.plot(${pyList(line.points.map(p => p[0]))}, ${pyList(line.points.map(p => p[1]))}, color=${colour}, linewidth=${short(line.width ?? 1.6)}${line.dash.length ? `, linestyle=(0, (${line.dash.join(', ')}))` : ''}${line.alpha ? `, alpha=${line.alpha}` : ''}${label ? `, label=${py(line.name)}` : ''})`);
    }
    for (const mark of marks) {
        const colour = py(`#${hexOf(mark.ink)}`);
        out.push(`ax.errorbar([${short(mark.x)}], [${short(mark.y)}], yerr=${mark.sd ? `[${short(mark.sd)}]` : 'None'}, fmt=${py(pyMarks[mark.shape] ?? 'o')}, color=${colour}, markersize=${short(mark.size * 1.4)}${mark.hollow ? ', fillstyle="none"' : ''}, capsize=3)`);
    }
    for (const { at, word } of rules)
        out.push(`ax.axvline(${short(at)}, color="gray", linestyle=":")`, `ax.annotate(${py(word)}, (${short(at)}, 0.05), xycoords=("data", "axes fraction"), xytext=(6, 0), textcoords="offset points", color="gray")`);
    for (const [name, axis] of /** @type {const} */ ([['x', x], ['y', y]])) {
        if (axis.log)
            out.push(`ax.set_${name}scale("log")`);
        out.push(`ax.set_${name}lim(${short(axis.low)}, ${short(axis.high)})`, `ax.set_${name}ticks(${pyList(axis.ticks.map(t => t.at))}, [${axis.ticks.map(t => py(t.word)).join(', ')}])`, `ax.minorticks_off()`, `ax.set_${name}label(${py(axis.title)})`);
    }
    out.push(`ax.set_title(${py(title)})`, 'ax.grid(axis="y", alpha=0.3)');
    if (named)
        out.push('ax.legend(frameon=False)');
    return `${[...out, 'plt.show()'].join('\n')}\n`;
}
