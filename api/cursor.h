/* api/cursor.h: the position after which a page begins, as an opaque text that clients cannot forge. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API_CURSOR_TEXT 64

/* `kind` names the list and its order ("jobs newest"): a cursor of one list is refused by another. The text
 * is base64url of (id, first 16 bytes of its HMAC). Returns `out`. */
const char *api_cursor_write(const uint8_t key[32], const char *kind, int64_t id, char out[API_CURSOR_TEXT]);
/* False if it was not written by api_cursor_write with the same key and kind. */
bool api_cursor_read(const uint8_t key[32], const char *kind, const char *text, int64_t *ret_id);

#define API_CURSOR_AT_TEXT 512
/* The same for a list ordered by a value: the text includes the position, at most 300 bytes, after the id.
 */
void api_cursor_write_at(const uint8_t key[32], const char *kind, int64_t id, const char *place,
                         char out[API_CURSOR_AT_TEXT]);
bool api_cursor_read_at(const uint8_t key[32], const char *kind, const char *text, int64_t *ret_id,
                        char *place, size_t size);
