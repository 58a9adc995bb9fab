/* api/models.h: what the inference surfaces take from the registry's handlers. */
#pragma once

#include "api/server.h"

#define API_MODEL_MAX 128

/* 1 to 128 of A-Z a-z 0-9 . _ - and no point in front. */
bool api_model_name_ok(const char *name);
/* A version's number from its text or from an alias; must be registered. 0: the request has been failed. */
int64_t api_model_version(struct api_req *r, const char *model, const char *text);
/* Loads or unloads and answers in the surface's form. n = 0: the highest, or all. */
void api_model_move(struct api_req *r, const char *model, int64_t n, bool load);
