/* The embedded dashboard: found by path, whole, and its gzip form unpacks to the plain one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "web/assets.h"

static void test_web_asset_find_knows_each_listed_path(void **state)
{
    const struct web_asset *asset;
    size_t n = 0;

    (void)state;
    for (; (asset = web_asset_at(n)); n++) {
        assert_ptr_equal(web_asset_find(asset->path), asset);
        assert_true(asset->length > 0);
        assert_int_equal(asset->path[0], '/');
    }
    assert_true(n >= 4);
    assert_null(web_asset_at(n));
}

static void test_web_asset_find_refuses_what_is_not_there(void **state)
{
    static const char *const paths[] = {
        "",     "//",          "/nothing", "/index.htm", "index.html", "/../index.html", "/INDEX.HTML",
        "/zzz", "/index.html/"};

    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        assert_null(web_asset_find(paths[i]));
}

static void test_web_asset_root_is_the_page(void **state)
{
    const struct web_asset *root = web_asset_find("/");
    const struct web_asset *page = web_asset_find("/index.html");

    (void)state;
    assert_non_null(root);
    assert_non_null(page);
    assert_ptr_equal(root->bytes, page->bytes);
    assert_string_equal(root->content_type, "text/html; charset=utf-8");
    assert_string_equal(web_asset_find("/vendor/uplot.js")->content_type, "text/javascript; charset=utf-8");
    assert_string_equal(web_asset_find("/vendor/uplot.css")->content_type, "text/css; charset=utf-8");
}

static void test_web_asset_gzip_unpacks_to_the_plain_bytes(void **state)
{
    const struct web_asset *asset;
    size_t zipped = 0;

    (void)state;
    for (size_t i = 0; (asset = web_asset_at(i)); i++) {
        unsigned char *plain;
        z_stream z = {0};

        if (!asset->gzip)
            continue;
        zipped++;
        plain = malloc(asset->length + 1);
        assert_non_null(plain);
        assert_int_equal(inflateInit2(&z, 16 + MAX_WBITS), Z_OK);
        z.next_in = (unsigned char *)asset->gzip;
        z.avail_in = (uInt)asset->gzip_length;
        z.next_out = plain;
        z.avail_out = (uInt)asset->length + 1;
        assert_int_equal(inflate(&z, Z_FINISH), Z_STREAM_END);
        assert_int_equal(z.total_out, asset->length);
        assert_memory_equal(plain, asset->bytes, asset->length);
        inflateEnd(&z);
        free(plain);
    }
    assert_true(zipped > 0);
}

static void test_web_asset_etags_differ_with_the_bytes(void **state)
{
    const struct web_asset *a, *b;

    (void)state;
    for (size_t i = 0; (a = web_asset_at(i)); i++) {
        assert_int_equal(a->etag[0], '"');
        assert_int_equal(a->etag[strlen(a->etag) - 1], '"');
        for (size_t k = i + 1; (b = web_asset_at(k)); k++) {
            if (a->bytes == b->bytes)
                assert_string_equal(a->etag, b->etag);
            else
                assert_string_not_equal(a->etag, b->etag);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_web_asset_find_knows_each_listed_path),
        cmocka_unit_test(test_web_asset_find_refuses_what_is_not_there),
        cmocka_unit_test(test_web_asset_root_is_the_page),
        cmocka_unit_test(test_web_asset_gzip_unpacks_to_the_plain_bytes),
        cmocka_unit_test(test_web_asset_etags_differ_with_the_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
