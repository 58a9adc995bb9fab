// Requests whose end two readers may see in different places. Each is followed by a second request in the same
// bytes: it must not be answered, and the connection must be closed.
import assert from 'node:assert/strict';
import net from 'node:net';
import { after, before, test } from 'node:test';
import { Host } from './lib.mjs';

let host;
before(async () => { host = await Host.start(); });
after(() => host.stop());

const GET = 'GET /healthz HTTP/1.1\r\nHost: localhost\r\n';
const POST = 'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n';
const SECOND = 'GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n';

/** Sends the bytes, then waits until the server closes. */
function exchange(bytes, ms = 4000) {
    return new Promise(resolve => {
        const socket = net.connect(host.port, '127.0.0.1');
        const pieces = [];
        let closed = false;
        const finish = () => {
            clearTimeout(timer);
            socket.destroy();
            const text = Buffer.concat(pieces).toString('latin1');
            resolve({ text, closed, statuses: [...text.matchAll(/HTTP\/1\.[01] (\d{3}) /g)].map(match => Number(match[1])) });
        };
        const timer = setTimeout(finish, ms);
        socket.on('data', piece => pieces.push(piece));
        socket.on('error', () => {});
        socket.on('end', () => { closed = true; });
        socket.on('close', () => { closed = true; finish(); });
        socket.write(Buffer.from(bytes, 'latin1'));
    });
}

// [what, bytes, status]. Without a status: any 4xx or 5xx, or a close without an answer, is right. A negative one:
// libmicrohttpd 0.9.75 refuses this itself, and writes the head of such an answer twice.
const invalid = [
    ['two lengths', `${POST}Content-Length: 2\r\nContent-Length: 45\r\n\r\n{}`, 400],
    ['two equal lengths', `${POST}Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}`, 400],
    ['two lengths, one of them zero', `${POST}Content-Length: 0\r\ncontent-length: 2\r\n\r\n{}`, 400],
    ['two lengths on a GET', `${GET}Content-Length: 0\r\nContent-Length: 5\r\n\r\n`, 400],
    ['a list of lengths', `${POST}Content-Length: 2, 2\r\n\r\n{}`, -400],
    ['a signed length', `${POST}Content-Length: +2\r\n\r\n{}`, -400],
    ['a negative length', `${POST}Content-Length: -2\r\n\r\n{}`, -400],
    ['a hexadecimal length', `${POST}Content-Length: 0x2\r\n\r\n{}`, -400],
    ['an empty length', `${POST}Content-Length:\r\n\r\n{}`, -400],
    ['a length above 64 bits', `${POST}Content-Length: 18446744073709551618\r\n\r\n{}`, -413],
    ['a length with a unit', `${POST}Content-Length: 2 bytes\r\n\r\n{}`, -400],
    ['a length and chunks', `${POST}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`, 400],
    ['chunks and a length', `${POST}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n`, 400],
    ['a length and chunks on a GET', `${GET}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`, 400],
    ['two encodings', `${POST}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n`, 400],
    ['an encoding that we do not know', `${POST}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n`, 400],
    ['an encoding that only looks like chunked', `${POST}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n`, 400],
    ['chunked in quotes', `${POST}Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n`, 400],
    ['chunked after a vertical tab', `${POST}Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n`, 400],
    ['chunks in HTTP/1.0', 'POST /v1/chat/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n', 400],
    ['a blank before the colon of the encoding', `${POST}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n`, 400],
    ['a blank before the colon of the length', `${POST}Content-Length : 2\r\n\r\n{}`, 400],
    ['a tab before the colon', `${GET}X-A\t: b\r\n\r\n`, 400],
    ['two hosts', 'GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n', 400],
    ['two equal hosts', 'GET /healthz HTTP/1.1\r\nHost: localhost\r\nhost: localhost\r\n\r\n', 400],
    ['no host', 'GET /healthz HTTP/1.1\r\nX-A: b\r\n\r\n', 400],
    ['an empty host', 'GET /healthz HTTP/1.1\r\nHost:\r\n\r\n', 400],
    ['two content types', `${POST}Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}`, 400],
    ['two origins', `${GET}Origin: http://localhost\r\nOrigin: http://evil.example\r\n\r\n`, 400],
    ['two idempotency keys', `${POST}Idempotency-Key: a\r\nIdempotency-Key: b\r\nContent-Length: 2\r\n\r\n{}`, 400],
    ['two expectations', `${POST}Expect: 100-continue\r\nExpect: x\r\nContent-Length: 2\r\n\r\n{}`, 400],
    ['bare line feeds', 'GET /healthz HTTP/1.1\nHost: localhost\n\n', 400],
    ['a bare line feed after the request line', 'GET /healthz HTTP/1.1\nHost: localhost\r\n\r\n', 400],
    ['a bare line feed after a field', 'GET /healthz HTTP/1.1\r\nHost: localhost\nX-A: b\r\n\r\n', 400],
    ['a bare line feed as the last line', `${GET}X-A: b\r\n\n`, 400],
    ['a bare line feed before the last line', 'GET /healthz HTTP/1.1\r\nHost: localhost\n\r\n', 400],
    ['a length behind a bare line feed', `${POST}X-A: b\nContent-Length: 45\r\n\r\n`, 400],
    ['a bare carriage return in a value', `${GET}X-A: b\rContent-Length: 45\r\n\r\n`, 400],
    ['a bare carriage return in the target', 'GET /healthz\r?a HTTP/1.1\r\nHost: localhost\r\n\r\n', 400],
    ['a folded value', `${GET}X-A: b\r\n c\r\n\r\n`, 400],
    ['a folded value, by a tab', `${GET}X-A: b\r\n\tc\r\n\r\n`, 400],
    ['a folded length', `${POST}Content-Length: 4\r\n 5\r\n\r\n{}`, 400],
    ['a folded host', 'GET /healthz HTTP/1.1\r\nHost: localhost\r\n .evil.example\r\n\r\n', 400],
    ['a name made by folding', `${POST}Content\r\n -Length: 45\r\n\r\n`, 400],
    ['a folded line that names a field', `${POST}X-A: b\r\n Content-Length: 45\r\n\r\n`, 400],
    ['a folded line of blanks alone', `${GET}X-A: b\r\n  \r\n\r\n`, 400],
    ['a blank before the first field', 'GET /healthz HTTP/1.1\r\n Host: localhost\r\nHost: localhost\r\n\r\n', 400],
    ['a field without a colon', `${GET}nonsense\r\n\r\n`, 400],
    ['a field without a name', `${GET}: b\r\n\r\n`, 400],
    ['a name that is no token', `${GET}X(A): b\r\n\r\n`, 400],
    ['a zero byte in a name', `${GET}X\0A: b\r\n\r\n`, 400],
    ['a zero byte in a value', `${GET}X-A: b\0c\r\n\r\n`, 400],
    ['a zero byte that hides a length', `${POST}X-A: b\0\r\nContent-Length: 45\r\n\r\n`, 400],
    ['a zero byte in the target', 'GET /healthz\0x HTTP/1.1\r\nHost: localhost\r\n\r\n'],
    ['a control character in a value', `${GET}X-A: b\x01\r\n\r\n`, 400],
    ['a blank in the target', 'GET /heal thz HTTP/1.1\r\nHost: localhost\r\n\r\n', 400],
    ['a tab in the target', 'GET /healthz\tx HTTP/1.1\r\nHost: localhost\r\n\r\n', 400],
    ['two blanks in the request line', 'GET  /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n', 400],
    ['a blank at the end of the request line', 'GET /healthz HTTP/1.1 \r\nHost: localhost\r\n\r\n', 400],
    ['a method that is no token', 'G(T /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n', 400],
    ['a version that does not exist', 'GET /healthz HTTP/3.1\r\nHost: localhost\r\n\r\n', 505],
    ['a version in small letters', 'GET /healthz http/1.1\r\nHost: localhost\r\n\r\n', 400],
    ['no version', 'GET /healthz\r\nHost: localhost\r\n\r\n', 400],
    ['a chunk without a size', `${POST}Transfer-Encoding: chunked\r\n\r\n;\r\n{}\r\n0\r\n\r\n`, 400],
    ['a chunk whose size is no number', `${POST}Transfer-Encoding: chunked\r\n\r\n2x\r\n{}\r\n0\r\n\r\n`, 400],
    ['a chunk whose size has a sign', `${POST}Transfer-Encoding: chunked\r\n\r\n+2\r\n{}\r\n0\r\n\r\n`, 400],
    ['a chunk whose size begins with 0x', `${POST}Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n`, 400],
    ['a chunk longer than its size', `${POST}Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n`, 400],
    ['a chunk above 64 bits', `${POST}Transfer-Encoding: chunked\r\n\r\n10000000000000002\r\n{}\r\n0\r\n\r\n`],
];

for (const [what, bytes, status] of invalid) {
    test(`refused and closed: ${what}`, async () => {
        const reply = await exchange(bytes + SECOND);
        assert.ok(reply.closed, `the connection is still open; ${reply.text}`);
        if (status < 0)
            assert.deepEqual([...new Set(reply.statuses)], [-status], reply.text);
        else
            assert.ok(reply.statuses.length <= 1, `answered twice: ${reply.text}`);
        if (status > 0)
            assert.deepEqual(reply.statuses, [status], reply.text);
        else
            assert.ok(!reply.statuses.length || reply.statuses[0] >= 400, reply.text);
        assert.doesNotMatch(reply.text, /^ok$/m);
    });
}

test('requests in good form are answered one after the other', async () => {
    const good = [
        SECOND,
        `${POST}Content-Length: 2\r\n\r\n{}`,
        `${POST}Content-Length: 000000002\r\n\r\n{}`,
        `${POST}Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n`,
        `${POST}Transfer-Encoding: Chunked\r\n\r\n1;ext=1\r\n{\r\n01\r\n}\r\n0\r\nTrailer: x\r\n\r\n`,
        `${GET}Accept: a\r\nAccept: b\r\nX-Empty:\r\nX-Blank:   \r\nX-Tab:\ta\tb\r\nX-Bytes: \xe4\xff\r\n\r\n`,
        `${GET}X-No-Blank:b\r\nX-Long: ${'x'.repeat(6000)}\r\n\r\n`,
        `\r\n${GET}\r\n`,
        'GET /healthz?verbose=1&a=%20 HTTP/1.1\r\nHost: localhost\r\n\r\n',
    ];
    // In every order of two: what came before must not disturb how the next one is read.
    for (const first of good) {
        for (const second of good) {
            const reply = await exchange(`${first}${second}GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n`);
            assert.equal(reply.statuses.length, 3, `${first}${second}\n${reply.text}`);
            assert.ok(!reply.statuses.includes(400), `${first}${second}\n${reply.text}`);
        }
    }
});

test('a head that comes byte by byte or in a large buffer is read the same way', async () => {
    const slow = new Promise((resolve, reject) => {
        const socket = net.connect(host.port, '127.0.0.1');
        let text = '';
        socket.on('data', piece => { text += piece; });
        socket.on('error', reject);
        socket.on('close', () => resolve(text));
        const bytes = `${GET}X-A: b\r\nConnection: close\r\n\r\n`;
        let at = 0;
        const next = () => {
            if (at < bytes.length)
                socket.write(bytes[at++], () => setImmediate(next));
        };
        socket.setNoDelay(true);
        next();
    });
    assert.match(await slow, /^HTTP\/1\.1 200 /);
    // Longer than the buffer that a connection begins with: it grows while the head is read.
    const long = Array.from({ length: 30 }, (_, i) => `X-${i}: ${'y'.repeat(1200)}\r\n`).join('');
    assert.deepEqual((await exchange(`${GET}${long}Connection: close\r\n\r\n`)).statuses, [200]);
    assert.deepEqual((await exchange(`${GET}${long}X-Z: a\nConnection: close\r\n\r\n`)).statuses, [400]);
});
