/* Streams, events and graphs. Work on a stream is put off until the host waits for it, or another stream that
 * is being carried out does: so whoever forgets to wait reads what was there before, and a missing event
 * between two streams shows. A recorded graph keeps one list per stream with its waits, and is carried out
 * the same way: the side streams as late as their dependencies allow. */
#include "tests/gpu/emu/runtime.h"

#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "tests/gpu/emu/block.h"
#include "tests/gpu/emu/note.h"

std::recursive_mutex pk_emu_lock;

namespace
{

struct graph_item {
    std::function<void()> work; /* empty: waits */
    int wait_list = -1;
    size_t wait_for = 0; /* this many items of that list */
};

struct graph_body {
    std::vector<std::vector<graph_item>> list; /* one for each stream; the first launched it */
    size_t works = 0;
    std::vector<std::pair<const void *, size_t>> rooms; /* kernels, and the shared memory they are given */
};

struct capture_state {
    graph_body body;
    cudaStream_t origin = nullptr;
    bool spoiled = false, ended = false;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id thread;
    std::vector<cudaStream_t> streams; /* by list */
};

} // namespace

struct stream_body {
    struct item {
        std::function<void()> work;
        std::shared_ptr<stream_body> wait; /* instead of work */
        uint64_t wait_for;
    };
    std::deque<item> items;
    uint64_t put = 0, done = 0;
    bool blocking = false;
};

struct pk_emu_stream {
    std::shared_ptr<stream_body> body;
    std::shared_ptr<capture_state> capture;
    int list = 0; /* in the capture */
};

struct pk_emu_event {
    std::shared_ptr<stream_body> stream;
    uint64_t at = 0;
    std::shared_ptr<capture_state> capture;
    int list = 0;
    size_t list_at = 0;
};

struct pk_emu_graph {
    std::shared_ptr<graph_body> body;
};

namespace
{

std::set<cudaStream_t> streams;
std::vector<std::weak_ptr<capture_state>> captures;
thread_local cudaError_t last_error = cudaSuccess;
std::map<const void *, int> shared_limit;
pk_emu_note_fn *noting;
void *noting_user;

pk_emu_stream *legacy()
{
    static pk_emu_stream s = {std::make_shared<stream_body>(), nullptr, 0};

    s.body->blocking = true;
    return &s;
}

pk_emu_stream *stream_of(cudaStream_t s)
{
    return s ? s : legacy();
}

void drain(const std::shared_ptr<stream_body> &s, uint64_t until)
{
    while (s->done < until && !s->items.empty()) {
        stream_body::item i = std::move(s->items.front());

        s->items.pop_front();
        if (i.wait)
            drain(i.wait, i.wait_for);
        else
            i.work();
        s->done++;
    }
}

/* What can be carried out of `list` up to `until`, and of others as far as it needs them. */
void carry_out(const graph_body *g, std::vector<size_t> *done, int list, size_t until, bool really)
{
    while ((*done)[(size_t)list] < until) {
        const graph_item &i = g->list[(size_t)list][(*done)[(size_t)list]++];

        if (i.wait_list >= 0)
            carry_out(g, done, i.wait_list, i.wait_for, really);
        else if (really)
            i.work();
    }
}

bool joined(const graph_body *g)
{
    std::vector<size_t> done(g->list.size(), 0);

    carry_out(g, &done, 0, g->list[0].size(), false);
    for (size_t i = 0; i < done.size(); i++)
        if (done[i] != g->list[i].size())
            return false;
    return true;
}

size_t room_of(const void *kernel)
{
    auto limit = shared_limit.find(kernel);

    return limit == shared_limit.end() ? (size_t)48 << 10 : (size_t)limit->second;
}

/* Whether every kernel may still have what it was recorded with. */
bool startable(const graph_body *g)
{
    for (const auto &r : g->rooms)
        if (r.second > room_of(r.first))
            return false;
    return true;
}

} // namespace

cudaError_t pk_emu_error(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

bool pk_emu_spoils_capture()
{
    bool any = false;

    for (const auto &w : captures)
        if (auto c = w.lock()) {
            if (c->mode == cudaStreamCaptureModeRelaxed ||
                (c->mode == cudaStreamCaptureModeThreadLocal && c->thread != std::this_thread::get_id()))
                continue;
            c->spoiled = true;
            any = true;
        }
    return any;
}

void pk_emu_drain_all()
{
    drain(legacy()->body, UINT64_MAX);
    for (cudaStream_t s : streams)
        drain(s->body, UINT64_MAX);
}

bool pk_emu_capturing(cudaStream_t stream)
{
    return stream_of(stream)->capture != nullptr;
}

cudaError_t pk_emu_enqueue(cudaStream_t stream, std::function<void()> work)
{
    pk_emu_stream *s = stream_of(stream);

    if (s->capture) {
        if (s->capture->spoiled)
            return pk_emu_error(cudaErrorStreamCaptureInvalidated);
        graph_item i;

        i.work = std::move(work);
        s->capture->body.list[(size_t)s->list].push_back(std::move(i));
        s->capture->body.works++;
        return cudaSuccess;
    }
    if (s == legacy()) { /* it comes after blocking streams, and they after it */
        for (cudaStream_t other : streams)
            if (other->body->blocking)
                drain(other->body, UINT64_MAX);
    } else if (s->body->blocking) {
        drain(legacy()->body, UINT64_MAX);
    }
    s->body->items.push_back({std::move(work), nullptr, 0});
    s->body->put++;
    return cudaSuccess;
}

void pk_emu_note(pk_emu_note_fn *note, void *user)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    noting = note;
    noting_user = user;
}

bool pk_emu_noted(const char *name, uint64_t what)
{
    if (noting)
        noting(noting_user, name, what);
    return noting != nullptr;
}

void pk_emu_enqueue_kernel(const char *name, const void *kernel, unsigned cluster, dim3 grid, dim3 block,
                           size_t shared, cudaStream_t stream, void (*run)(const void *args),
                           const void *args, size_t bytes)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);
    uint64_t threads = (uint64_t)block.x * block.y * block.z;

    if (!grid.x || !grid.y || !grid.z || !threads || threads > 1024 || block.z > 64 || grid.y > 65535 ||
        grid.z > 65535 || grid.x > 0x7fffffffu || !cluster || grid.x % cluster ||
        cluster > PK_EMU_CLUSTER_MOST || (cluster > 1 && (threads + 127) / 128 * 128 * cluster > 1024)) {
        pk_emu_error(cudaErrorInvalidConfiguration);
        return;
    }
    /* A device counts static shared memory too when it is asked for the limit, and refuses the most that there is: here
     * its size is not known, so a kernel without dynamic shared memory counts as one that has some. */
    if (shared > room_of(kernel) || (shared == 0 && shared_limit.count(kernel))) {
        pk_emu_error(cudaErrorInvalidValue);
        return;
    }
    if (pk_emu_noted(name, (uint64_t)(uintptr_t)kernel))
        return;
    if (stream_of(stream)->capture)
        stream_of(stream)->capture->body.rooms.emplace_back(kernel, shared);
    /* Tensor maps are arguments, aligned to 64 bytes. */
    std::shared_ptr<void> copy(aligned_alloc(128, (bytes + 127) / 128 * 128), free);

    memcpy(copy.get(), args, bytes);
    pk_emu_enqueue(stream, [=] { pk_emu_run_kernel(name, cluster, grid, block, shared, run, copy.get()); });
}

extern "C" {

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    *stream = new pk_emu_stream{std::make_shared<stream_body>(), nullptr, 0};
    (*stream)->body->blocking = !(flags & cudaStreamNonBlocking);
    streams.insert(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    if (!stream || !streams.count(stream))
        return pk_emu_error(cudaErrorInvalidResourceHandle);
    drain(stream->body, UINT64_MAX);
    streams.erase(stream);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);
    pk_emu_stream *s = stream_of(stream);

    if (s->capture) {
        s->capture->spoiled = true;
        return pk_emu_error(cudaErrorStreamCaptureUnsupported);
    }
    drain(s->body, UINT64_MAX);
    pk_emu_check_guards("cudaStreamSynchronize");
    return cudaSuccess;
}

/* Half of what is left runs at each question, so that "not ready" is seen. */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);
    pk_emu_stream *s = stream_of(stream);

    if (s->capture) {
        s->capture->spoiled = true;
        return pk_emu_error(cudaErrorStreamCaptureUnsupported);
    }
    if (s->body->items.empty())
        return cudaSuccess;
    drain(s->body, s->body->done + (s->body->items.size() + 1) / 2);
    return cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);
    pk_emu_stream *s = stream_of(stream);

    if (event->capture && event->capture->ended) /* it never happens */
        return pk_emu_error(cudaErrorCapturedEvent);
    if (event->capture) { /* the waiting stream joins the capture */
        auto c = event->capture;
        graph_item i;

        if (s->capture && s->capture != c) {
            c->spoiled = s->capture->spoiled = true;
            return pk_emu_error(cudaErrorStreamCaptureUnsupported);
        }
        if (!s->capture) {
            s->capture = c;
            s->list = (int)c->body.list.size();
            c->body.list.emplace_back();
            c->streams.push_back(s);
        }
        i.wait_list = event->list;
        i.wait_for = event->list_at;
        if (event->list != s->list)
            c->body.list[(size_t)s->list].push_back(std::move(i));
        return cudaSuccess;
    }
    if (s->capture) { /* an event from outside the capture */
        s->capture->spoiled = true;
        return pk_emu_error(cudaErrorStreamCaptureUnsupported);
    }
    if (event->stream && event->stream != s->body) {
        s->body->items.push_back({nullptr, event->stream, event->at});
        s->body->put++;
    }
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = new pk_emu_event();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);
    pk_emu_stream *s = stream_of(stream);

    if (s->capture) {
        event->capture = s->capture;
        event->list = s->list;
        event->list_at = s->capture->body.list[(size_t)s->list].size();
        return cudaSuccess;
    }
    event->capture = nullptr;
    event->stream = s->body;
    event->at = s->body->put;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    if (event->capture) {
        event->capture->spoiled = true;
        return pk_emu_error(cudaErrorCapturedEvent);
    }
    if (event->stream)
        drain(event->stream, event->at);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    if (event->capture) {
        event->capture->spoiled = true;
        return pk_emu_error(cudaErrorCapturedEvent);
    }
    if (!event->stream || event->stream->done >= event->at)
        return cudaSuccess;
    drain(event->stream, event->stream->done + (event->at - event->stream->done + 1) / 2);
    return cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t)
{
    *ms = 0.001f; /* no time passes here: choices by timing keep the first */
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    return pk_emu_enqueue(stream, [fn, user] { fn(user); });
}

cudaError_t cudaDeviceSynchronize(void)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    if (pk_emu_spoils_capture())
        return pk_emu_error(cudaErrorStreamCaptureUnsupported);
    pk_emu_drain_all();
    pk_emu_check_guards("cudaDeviceSynchronize");
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
    return cudaDeviceSynchronize();
}

/* ---- capture ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    if (!stream)
        return pk_emu_error(cudaErrorStreamCaptureUnsupported);
    if (stream->capture)
        return pk_emu_error(cudaErrorStreamCaptureUnmatched);
    stream->capture = std::make_shared<capture_state>();
    stream->capture->origin = stream;
    stream->capture->mode = mode;
    stream->capture->thread = std::this_thread::get_id();
    stream->capture->streams.push_back(stream);
    stream->capture->body.list.emplace_back();
    stream->list = 0;
    captures.push_back(stream->capture);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);
    std::shared_ptr<capture_state> c = stream ? stream->capture : nullptr;

    *graph = nullptr;
    if (!c || c->origin != stream)
        return pk_emu_error(cudaErrorStreamCaptureUnmatched);
    c->ended = true;
    for (cudaStream_t s : c->streams)
        s->capture = nullptr;
    captures.erase(std::remove_if(captures.begin(), captures.end(),
                                  [&](const std::weak_ptr<capture_state> &w) { return w.lock() == c; }),
                   captures.end());
    if (c->spoiled)
        return pk_emu_error(cudaErrorStreamCaptureInvalidated);
    if (!joined(&c->body))
        return pk_emu_error(cudaErrorStreamCaptureUnjoined);
    *graph = new pk_emu_graph{std::make_shared<graph_body>(std::move(c->body))};
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);
    pk_emu_stream *s = stream_of(stream);

    *status = !s->capture           ? cudaStreamCaptureStatusNone
              : s->capture->spoiled ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    if (!graph || !startable(graph->body.get()))
        return pk_emu_error(cudaErrorInvalidValue);
    *exec = new pk_emu_graph{graph->body};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);
    std::shared_ptr<graph_body> g = exec->body;

    if (!startable(g.get()))
        return pk_emu_error(cudaErrorInvalidValue);
    return pk_emu_enqueue(stream, [g] {
        std::vector<size_t> done(g->list.size(), 0);

        carry_out(g.get(), &done, 0, g->list[0].size(), true);
    });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void *, size_t *count)
{
    *count = graph->body->works;
    return cudaSuccess;
}

/* ---- functions ---- */

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attr, int value)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value < 0 || (size_t)value > PK_EMU_SHARED_MOST)
        return pk_emu_error(cudaErrorInvalidValue);
    shared_limit[function] = std::max(value, 48 << 10);
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *function)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);
    auto limit = shared_limit.find(function);

    memset(attr, 0, sizeof *attr);
    attr->maxThreadsPerBlock = 1024;
    attr->numRegs = 64;
    attr->maxDynamicSharedSizeBytes = limit == shared_limit.end() ? 48 << 10 : limit->second;
    return cudaSuccess;
}

} // extern "C"
