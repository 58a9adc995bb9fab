/* daemon/polyd/supervise/serving/serving.h: loaded models: their workers, loads and unloads, requests and
 * answers.
 *
 * Other threads read the table of models and add requests to a model's inbox, under the module's lock; only
 * the loop's thread changes the table and uses processes and connections. No other lock is taken under this
 * one. */
#pragma once

#include "daemon/polyd/supervise/supervise.h"
#include "kernels/base/err.h"

struct devices;
struct loop;
struct serving;
struct workers;

/* `o` is borrowed until serving_free. */
PD_NODISCARD enum pd_err serving_new(struct loop *l, struct workers *w, struct devices *devices,
                                     const struct sup_options *o, struct serving **ret, struct pd_why *why);
/* Loads the models that should be loaded. Before loop_start. */
PD_NODISCARD enum pd_err serving_start(struct serving *s, struct pd_why *why);
/* Completes open requests with an error. After loop_stop. NULL is fine. Returns NULL. */
struct serving *serving_free(struct serving *s);

/* Any thread: the functions of supervise.h. Rows are called back under the lock. */
void serving_list(struct serving *s, void (*row)(void *ctx, const struct sup_model_info *m), void *ctx);
PD_NODISCARD enum pd_err serving_get(struct serving *s, const char *model, int64_t version,
                                     void (*row)(void *ctx, const struct sup_model_info *m), void *ctx,
                                     struct pd_why *why);
PD_NODISCARD enum pd_err serving_load(struct serving *s, const char *model, int64_t version,
                                      void (*done)(void *ctx, enum pd_err err, const struct pd_why *why),
                                      void *ctx, struct pd_why *why);
PD_NODISCARD enum pd_err serving_unload(struct serving *s, const char *model, int64_t version,
                                        void (*done)(void *ctx, enum pd_err err, const struct pd_why *why),
                                        void *ctx, struct pd_why *why);
PD_NODISCARD enum pd_err serving_infer(struct serving *s, const struct sup_infer *req, uint64_t *ret_id,
                                       struct pd_why *why);
void serving_cancel(struct serving *s, uint64_t id);
