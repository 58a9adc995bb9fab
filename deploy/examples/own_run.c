/* A training of one's own as a run of polyd, with libcurl:
 *     cc own_run.c $(pkg-config --cflags --libs libcurl) -o own_run && ./own_run [http://127.0.0.1:7070]
 *
 * It finds the root of 2 by Newton's method. The answers are read with sscanf; a larger program takes a JSON
 * library. */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char answer[65536]; /* of the last request, cut off behind that */

static size_t keep(char *bytes, size_t one, size_t n, void *unused)
{
    size_t left = sizeof answer - 1 - strlen(answer);

    strncat(answer, bytes, n < left ? n : left);
    (void)unused;
    return one * n; /* all of it was taken */
}

static void post(CURL *curl, const char *url, const char *path, const char *body)
{
    char whole[512];
    long status = 0;

    snprintf(whole, sizeof whole, "%s/api/v1/runs%s", url, path);
    answer[0] = '\0';
    curl_easy_setopt(curl, CURLOPT_URL, whole);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    CURLcode rc = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    if (rc != CURLE_OK || status >= 300) {
        fprintf(stderr, "%s: %s %s\n", whole, rc != CURLE_OK ? curl_easy_strerror(rc) : "", answer);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    const char *url = argc > 1 ? argv[1] : "http://127.0.0.1:7070";
    CURL *curl = curl_easy_init();
    struct curl_slist *json = curl_slist_append(NULL, "Content-Type: application/json");
    char path[64], body[256];
    double x = 100;
    long long run;

    if (!curl || !json)
        return 1;
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, json);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, keep);
    post(curl, url, "",
         "{\"name\": \"root of 2\", \"experiment\": \"own runs\", \"config\": {\"start\": 100}}");
    if (sscanf(answer, "{\"id\":\"%lld\"", &run) != 1)
        return 1;
    snprintf(path, sizeof path, "/%lld/metrics", run);
    for (int step = 1; step <= 12; step++) {
        x = (x + 2 / x) / 2;
        snprintf(body, sizeof body, "{\"points\": [{\"key\": \"error\", \"step\": %d, \"value\": %.17g}]}",
                 step, x * x - 2);
        post(curl, url, path, body); /* a sign of life, too */
    }
    snprintf(path, sizeof path, "/%lld/finish", run);
    snprintf(body, sizeof body, "{\"outcome\": \"succeeded\", \"reason\": \"x = %.6f\"}", x);
    post(curl, url, path, body);
    printf("run %lld: x = %.6f\n", run, x);
    curl_slist_free_all(json);
    curl_easy_cleanup(curl);
    return 0;
}
