/* api/models.h: what the inference surfaces take from the registry's handlers. */
#pragma once

#include "api/server.h"

#define API_MODEL_MAX 128

/* 1 to 128 of A-Z a-z 0-9 . _ - and no point in front. */
bool api_model_name_ok(const char *name);
/* A member that is an id as text; 0: it is absent, or the request has been failed. */
int64_t api_id_member(struct api_req *r, json_t *body, const char *key);
/* What of a registration by upload can be said before the file has come. False: the request has been failed. */
bool api_register_check(struct api_req *r);
/* A version's number from its text or from an alias; must be registered. 0: the request has been failed. */
int64_t api_model_version(struct api_req *r, const char *model, const char *text);
/* The model and the version of "name", "name:version" or "name:alias"; 0: the newest that is loaded. -1: the
 * request has been failed. */
int64_t api_model_of_text(struct api_req *r, const char *text, char name[API_MODEL_MAX + 1]);
/* The model, or one version of it, as it is now. */
void api_answer_model(struct api_req *r, const char *name);
void api_answer_version(struct api_req *r, const char *model, int64_t n, int status);
/* Loads or unloads and answers in the surface's form. n = 0: the highest, or all. */
void api_model_move(struct api_req *r, const char *model, int64_t n, bool load);
