/* api/models.h: functions of the registry's handlers for the inference surfaces. */
#pragma once

#include "api/server.h"

#define API_MODEL_MAX 128

/* 1 to 128 characters of A-Z a-z 0-9 . _ -, not starting with a dot. */
bool api_model_name_ok(const char *name);
/* A member with an id as text; 0: absent, or an error reply was set. */
int64_t api_id_member(struct api_req *r, json_t *body, const char *key);
/* Checks a registration by upload before the file is received. False: an error reply was set. */
bool api_register_check(struct api_req *r);
/* Number of a registered version from its text or from an alias. 0: an error reply was set. */
int64_t api_model_version(struct api_req *r, const char *model, const char *text);
/* The model and the version of "name", "name:version" or "name:alias"; 0: the newest loaded version. -1: an
 * error reply was set. */
int64_t api_model_of_text(struct api_req *r, const char *text, char name[API_MODEL_MAX + 1]);
/* Replies with the current state of the model or of one version. */
void api_answer_model(struct api_req *r, const char *name);
void api_answer_version(struct api_req *r, const char *model, int64_t n, int status);
/* Loads or unloads, and replies in the format of the surface. n = 0: the highest version, or all. */
void api_model_move(struct api_req *r, const char *model, int64_t n, bool load);
