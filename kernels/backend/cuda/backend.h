/* kernels/backend/cuda/backend.h: entries of the table that are defined in files of their own, as specified in
 * kernels/backend/backend.h. */
#pragma once

#include "kernels/backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* probe.cu: whether this plug-in holds code for the device that is set. */
enum pd_err cuda_probe(struct pd_why *why);

/* backend.c: run, without choosing the device. */
enum pd_err cuda_enqueue(struct pk_backend *b, const struct pk_call *calls, size_t count, struct pd_why *why);
enum pd_err cuda_info(struct pk_backend *b, struct pk_backend_info *ret, struct pd_why *why);

/* collective.c. Collectives run on the side stream, concurrent with kernels; calls that access their memory wait for
 * them. */
/* Before this call is enqueued. */
enum pd_err cuda_ranks_before(struct pk_backend *b, const struct pk_call *c, struct pd_why *why);
/* The stream waits for all of them. */
enum pd_err cuda_ranks_join(struct pk_backend *b, struct pd_why *why);
/* Why these calls cannot be recorded; NULL if they can. */
const char *cuda_ranks_unrecordable(const struct pk_backend *b, const struct pk_call *calls, size_t count);
/* Forgets pending collectives, which were part of a recording that failed. */
void cuda_ranks_forget(struct pk_backend *b);
void cuda_ranks_close(struct pk_backend *b);

/* capture.c */
enum pd_err cuda_capture(struct pk_backend *b, const struct pk_call *calls, size_t count,
                         struct pk_captured **ret, struct pd_why *why);
enum pd_err cuda_replay(struct pk_backend *b, struct pk_captured *captured, struct pd_why *why);
struct pk_captured *cuda_captured_free(struct pk_backend *b, struct pk_captured *captured);

/* slot.c */
void *cuda_alloc_host(struct pk_backend *b, size_t bytes);
void cuda_free_host(struct pk_backend *b, void *memory);
/* Whether p points into memory of alloc_host. */
bool cuda_pinned(const struct pk_backend *b, const void *p);
enum pd_err cuda_slot_new(struct pk_backend *b, size_t bytes, struct pk_slot **ret, struct pd_why *why);
/* upload, without choosing the device. */
enum pd_err cuda_passage_open(struct pk_backend *b, struct pd_why *why);
void cuda_passage_close(struct pk_backend *b);
enum pd_err cuda_pass(struct pk_backend *b, void *to, const void *from, size_t bytes, struct pd_why *why);
struct pk_slot *cuda_slot_free(struct pk_backend *b, struct pk_slot *slot);
void *cuda_slot_host(struct pk_slot *slot);
enum pd_err cuda_slot_send(struct pk_backend *b, struct pk_slot *slot, struct pd_why *why);
enum pd_err cuda_slot_wait(struct pk_backend *b, struct pk_slot *slot, struct pd_why *why);
enum pd_err cuda_slot_take(struct pk_backend *b, struct pk_slot *slot, const struct pk_take *parts,
                           size_t count, struct pd_why *why);

#ifdef __cplusplus
}
#endif
