/* api/rows.h: rows of the store as the JSON of openapi.yaml. */
#pragma once

#include "api/server.h"

#define API_ROW_FULL 1u /* with the document */

/* Left open: true leaves the object open, so that the caller adds members and closes it. */
#define API_ROW_OPEN 2u

/* Without the digests, which no compression shortens. */
#define API_ROW_NO_DIGESTS 4u

void api_row_job(struct pd_buf *b, const struct store_job *job, unsigned flags);
/* `sup` tells the place in the queue and the live step; `store` (may be NULL: no estimate of the end) the
 * pace. */
void api_row_run(struct pd_buf *b, const struct store_run *run, struct store *store, struct sup *sup,
                 unsigned flags);
void api_row_attempt(struct pd_buf *b, const struct store_attempt *a);
void api_row_checkpoint(struct pd_buf *b, const struct store_checkpoint *c);
void api_row_event(struct pd_buf *b, const struct store_event *e);

/* Strong tag of a row version. Returns `out`. */
const char *api_etag(int64_t version, char out[32]);
/* Reads If-Match into a row version: -1 = any ("*" or, if not `required`, absent). False: the request has
 * been failed with 428 or 412. */
bool api_if_match(struct api_req *r, bool required, int64_t *ret_version);
/* Sets ETag; true if If-None-Match has it: then the answer is 304. */
bool api_not_modified(struct api_req *r, int64_t version);

/* {"checkpoints":..,"logs":..,"blobs":..,"total":..} */
void api_space_json(struct pd_buf *b, const struct store_space *space);
/* The query parameter archived. False: the request has been failed. */
bool api_query_archived(struct api_req *r, enum store_archived *ret);

/* The answer, or the failure met while it was written; `b` is done with either way. */
void api_answer(struct api_req *r, enum pd_err err, const struct pd_why *why, struct pd_buf *b);
/* Fails the request unless the job (or run) exists; adds ETag. Answers with the row. */
void api_answer_job(struct api_req *r, int64_t id, int status, bool conditional);
void api_answer_run(struct api_req *r, int64_t id, bool conditional);
void api_answer_group(struct api_req *r, const char *name, int status, bool conditional);
