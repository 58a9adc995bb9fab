/* api/rows.h: rows of the store as the JSON of openapi.yaml. */
#pragma once

#include "api/server.h"

#define API_ROW_FULL 1u /* with the document */

/* Left open: true leaves the object open, so that the caller adds members and closes it. */
#define API_ROW_OPEN 2u

/* Without the digests, which do not compress. */
#define API_ROW_NO_DIGESTS 4u

void api_row_job(struct pd_buf *b, const struct store_job *job, unsigned flags);
/* `sup` (may be NULL: neither) provides the position in the queue and the current step; `store` (may be NULL: no
 * estimated end) the pace. */
void api_row_run(struct pd_buf *b, const struct store_run *run, struct store *store, struct sup *sup,
                 unsigned flags);
void api_row_attempt(struct pd_buf *b, const struct store_attempt *a);
void api_row_checkpoint(struct pd_buf *b, const struct store_checkpoint *c);
void api_row_event(struct pd_buf *b, const struct store_event *e);

/* Strong tag of a row version. Returns `out`. */
const char *api_etag(int64_t version, char out[32]);
/* Reads If-Match into a row version: -1 = any ("*" or, if not `required`, absent). False: a 428 or 412 reply
 * was set. */
bool api_if_match(struct api_req *r, bool required, int64_t *ret_version);
/* Sets ETag; true if If-None-Match has it: then the answer is 304. */
bool api_not_modified(struct api_req *r, int64_t version);

/* {"checkpoints":..,"logs":..,"blobs":..,"total":..} */
void api_space_json(struct pd_buf *b, const struct store_space *space);
/* The query parameter archived. False: an error reply was set. */
bool api_query_archived(struct api_req *r, enum store_archived *ret);

/* Replies with `b`, or with the failure while it was written; `b` is consumed in either case. */
void api_answer(struct api_req *r, enum pd_err err, const struct pd_why *why, struct pd_buf *b);
/* Replies with the row and its ETag, or with 404 if the job (or run) does not exist. */
void api_answer_job(struct api_req *r, int64_t id, int status, bool conditional);
void api_answer_run(struct api_req *r, int64_t id, bool conditional);
void api_answer_group(struct api_req *r, const char *name, int status, bool conditional);
