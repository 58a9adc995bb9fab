/* A stand-in for libnccl.so.2 on host memory: what comm_nccl.so calls, done at once by `local`. Streams are
 * not looked at. Initialisation says "in progress" for a while, as the real one does when it does not block.
 * An abort ends calls at once, and comes back when the recorded steps that hold some are gone, as the real
 * one does (init.cc: commDestroySync counts them). */
#include <nccl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/comm/comm.h"

struct ncclComm {
    struct pk_comm *comm;
    ncclUniqueId id;
    int rank, ranks, asked;
    ncclResult_t state;
};

#define EXPORT __attribute__((visibility("default")))

EXPORT const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSuccess ? "no error" : "the stand-in's error";
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 0, sizeof *id);
    return pk_comm_local()->make_id(id, NULL) == PD_OK ? ncclSuccess : ncclSystemError;
}

EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *ret, int ranks, ncclUniqueId id, int rank,
                                           ncclConfig_t *config)
{
    struct ncclComm *c = calloc(1, sizeof *c);

    if (!c || config->blocking)
        return ncclInvalidUsage;
    c->id = id;
    c->rank = rank;
    c->ranks = ranks;
    *ret = c;
    return ncclInProgress;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *ret)
{
    if (!c->comm && c->state == ncclSuccess) {
        const struct pk_comm_options o = {.id = &c->id, .rank = c->rank, .ranks = c->ranks};

        c->state = ++c->asked < 4                                             ? ncclSuccess
                   : pk_comm_local()->open(NULL, &o, &c->comm, NULL) == PD_OK ? ncclSuccess
                                                                              : ncclRemoteError;
        *ret = c->comm || c->state != ncclSuccess ? c->state : ncclInProgress;
        return ncclSuccess;
    }
    *ret = c->state;
    return ncclSuccess;
}

static _Atomic int recorded;

/* For tests: recorded steps that hold calls of any communicator here. */
EXPORT void fake_nccl_recorded(int steps);
EXPORT void fake_nccl_recorded(int steps)
{
    atomic_store(&recorded, steps);
}

EXPORT ncclResult_t ncclCommAbort(ncclComm_t c)
{
    while (atomic_load(&recorded) > 0)
        usleep(1000);
    pk_comm_local()->close(c->comm);
    free(c);
    return ncclSuccess;
}

static enum pk_dtype type_of(ncclDataType_t type)
{
    return type == ncclFloat32    ? PK_F32
           : type == ncclFloat64  ? PK_F64
           : type == ncclBfloat16 ? PK_BF16
                                  : PK_I32;
}

static ncclResult_t result_of(enum pd_err err)
{
    return err == PD_OK ? ncclSuccess : ncclRemoteError;
}

EXPORT ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                                  ncclRedOp_t op, ncclComm_t c, cudaStream_t stream)
{
    (void)op;
    (void)stream;
    return result_of(
        pk_comm_local()->all_reduce(c->comm, from, to, (int64_t)count, type_of(type), -1, NULL, NULL));
}

EXPORT ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               int root, ncclComm_t c, cudaStream_t stream)
{
    (void)op;
    (void)stream;
    return result_of(
        pk_comm_local()->all_reduce(c->comm, from, to, (int64_t)count, type_of(type), root, NULL, NULL));
}

EXPORT ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type,
                                      ncclRedOp_t op, ncclComm_t c, cudaStream_t stream)
{
    (void)op;
    (void)stream;
    return result_of(
        pk_comm_local()->reduce_scatter(c->comm, from, to, (int64_t)count, type_of(type), NULL, NULL));
}

EXPORT ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t c,
                                  cudaStream_t stream)
{
    (void)stream;
    return result_of(
        pk_comm_local()->all_gather(c->comm, from, to, (int64_t)count, type_of(type), NULL, NULL));
}

EXPORT ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t c, cudaStream_t stream)
{
    (void)from;
    (void)stream;
    return result_of(
        pk_comm_local()->broadcast(c->comm, to, (int64_t)count, type_of(type), root, NULL, NULL));
}
