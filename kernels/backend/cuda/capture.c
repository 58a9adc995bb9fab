/* A list of calls as one CUDA graph: recorded once from the stream, then launched as a whole. Values that change from
 * step to step are in device memory, so a graph is never edited. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/backend/cuda/backend.h"

struct pk_captured {
    cudaGraphExec_t exec;
};

enum pd_err cuda_capture(struct pk_backend *b, const struct pk_call *calls, size_t count,
                         struct pk_captured **ret, struct pd_why *why)
{
    struct pk_captured *c = calloc(1, sizeof *c);
    cudaGraph_t graph = NULL;
    cudaError_t error;
    enum pd_err err;

    if (!c)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a captured step");
    if (cuda_ranks_unrecordable(b, calls, count)) {
        free(c);
        return pd_fail(why, PD_ERR_UNSUPPORTED, "%s", cuda_ranks_unrecordable(b, calls, count));
    }
    error = cudaSetDevice(b->device);
    /* Thread-local: calls of other threads (a second model, device information) do not invalidate it. */
    if (error == cudaSuccess)
        error = cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess) {
        err = cuda_fail(why, error, "beginning to capture a step");
        goto out;
    }
    err = cuda_enqueue(b, calls, count, why);
    error = cudaStreamEndCapture(b->stream, &graph); /* also after an error: the stream must be left usable */
    if (err != PD_OK) {
        (void)cudaGetLastError();
        cuda_ranks_forget(b);
        goto out;
    }
    if (error == cudaSuccess)
        error = cudaGraphInstantiate(&c->exec, graph, 0);
    if (error == cudaSuccess)
        error = cudaGraphUpload(c->exec, b->stream);
    if (error != cudaSuccess) {
        err = cuda_fail(why, error, "capturing a step");
        goto out;
    }
    *ret = c;
    c = NULL; /* moved to the caller */
out:
    if (err != PD_OK && b->host && b->host->log) {
        char text[400];

        snprintf(text, sizeof text, "device=%d recorded=no calls=%zu why=\"%.300s\"", b->device, count,
                 why ? why->text : "");
        b->host->log(b->host->user, 4, text);
    }
    if (graph)
        (void)cudaGraphDestroy(graph);
    cuda_captured_free(b, c);
    return err;
}

enum pd_err cuda_replay(struct pk_backend *b, struct pk_captured *captured, struct pd_why *why)
{
    PK_CUDA_TRY(cudaSetDevice(b->device));
    PK_CUDA_TRY(cudaGraphLaunch(captured->exec, b->stream));
    return PD_OK;
}

struct pk_captured *cuda_captured_free(struct pk_backend *b, struct pk_captured *captured)
{
    if (captured) {
        (void)cudaSetDevice(b->device);
        if (captured->exec)
            (void)cudaGraphExecDestroy(captured->exec);
        free(captured);
    }
    return NULL;
}
