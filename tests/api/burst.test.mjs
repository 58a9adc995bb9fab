// Many requests that arrive in the same instant: the server was stopped while they were sent.
import assert from 'node:assert/strict';
import net from 'node:net';
import { test } from 'node:test';
import { Host } from './lib.mjs';

const ANSWERED_WITHIN_MS = 20000; // less than the time-out of an idle connection

/** @returns {Promise<net.Socket>} */
const connect = port => new Promise((resolve, reject) => {
    const socket = net.connect(port, '127.0.0.1', () => resolve(socket));
    socket.on('error', reject);
});

/** Resolves when the socket has had one whole answer of status 204 or 200 without waiting for its body's length. */
const answer = socket => new Promise((resolve, reject) => {
    let text = '';
    const end = error => {
        socket.off('data', data).off('close', closed);
        clearTimeout(timer);
        error ? reject(error) : resolve();
    };
    const data = bytes => {
        text += bytes;
        const head = text.indexOf('\r\n\r\n');
        const length = /content-length: *(\d+)/i.exec(text);
        if (head >= 0 && length && text.length >= head + 4 + Number(length[1]))
            end(/^HTTP\/1.1 200 /.test(text) ? null : new Error(text.slice(0, 100)));
    };
    const closed = () => end(new Error('closed without an answer'));
    const timer = setTimeout(() => end(new Error('no answer')), ANSWERED_WITHIN_MS);
    socket.on('data', data).on('close', closed);
});

// 128 is how many events libmicrohttpd takes from epoll at once; it waits again for more before it looks at a full load.
test('bursts of any size are answered', async () => {
    const host = await Host.start(['--server.threads=1']);
    try {
        const sockets = [];
        for (const size of [1, 127, 128, 129, 256]) {
            while (sockets.length < size)
                sockets.push(await connect(host.port));
            for (const socket of sockets) { // each has been accepted and is idle
                const answered = answer(socket);
                socket.write('GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n');
                await answered;
            }
            host.child.kill('SIGSTOP');
            const answers = sockets.map(answer);
            await Promise.all(sockets.map(socket => new Promise(resolve =>
                socket.write('GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n', resolve))));
            host.child.kill('SIGCONT');
            const results = await Promise.allSettled(answers);
            const lost = results.filter(result => result.status === 'rejected');
            assert.equal(lost.length, 0, `${size} at once: ${lost.length} ${lost[0]?.reason}`);
        }
        for (const socket of sockets)
            socket.destroy();
    } finally {
        await host.stop();
    }
});
