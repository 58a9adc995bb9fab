// Reads text/event-stream from a fetch response: unlike EventSource it can POST, send headers, and hands
// over events of any name.

/**
 * @param {ReadableStream<Uint8Array>} body
 * @param {(id: string) => void} [passed] each id once it is passed: it may come without an event
 * @returns {AsyncGenerator<{event: string, data: string, id: string | null, retry: number | null}>}
 */
export async function* readEvents(body, passed) {
    const reader = body.getReader();
    const decoder = new TextDecoder();
    let rest = '';
    let event = '';
    /** @type {string[]} */
    let data = [];
    /** @type {string | null} */
    let id = null;
    /** @type {number | null} */
    let retry = null;
    try {
        for (;;) {
            const { value, done } = await reader.read();
            rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
            const lines = rest.split(/\r\n|\n|\r(?!$)/);
            rest = lines.pop() ?? '';
            for (const line of lines) {
                if (line === '') {
                    if (id !== null)
                        passed?.(id);
                    if (data.length > 0)
                        yield { event: event || 'message', data: data.join('\n'), id, retry };
                    event = '';
                    data = [];
                    continue;
                }
                const colon = line.indexOf(':');
                if (colon === 0)
                    continue; // a comment keeps the connection open
                const field = colon < 0 ? line : line.slice(0, colon);
                const text = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
                if (field === 'event')
                    event = text;
                else if (field === 'data')
                    data.push(text);
                else if (field === 'id')
                    id = text;
                else if (field === 'retry' && /^\d+$/.test(text))
                    retry = Number(text);
            }
            if (done)
                return;
        }
    } finally {
        reader.cancel().catch(() => {});
    }
}
