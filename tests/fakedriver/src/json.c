/* A JSON reader that flattens a text into (path, value) pairs: all that a scenario needs. */
#include "common.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_SIZE 512

static void add(document *doc, const char *path, const char *value)
{
    if (doc->count == doc->room) {
        doc->room = doc->room ? doc->room * 2 : 64;
        doc->pairs = realloc(doc->pairs, doc->room * sizeof *doc->pairs);
        if (!doc->pairs)
            abort();
    }
    doc->pairs[doc->count++] = (pair){strdup(path), strdup(value)};
}

static int by_path(const void *one, const void *other)
{
    return strcmp(((const pair *)one)->path, ((const pair *)other)->path);
}

static const char *skip(const char *at)
{
    while (isspace((unsigned char)*at))
        at++;
    return at;
}

static size_t put_utf8(char *out, unsigned code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    out[0] = (char)(0xE0 | code >> 12);
    out[1] = (char)(0x80 | (code >> 6 & 0x3F));
    out[2] = (char)(0x80 | (code & 0x3F));
    return 3;
}

/* Read a string that starts at a quote; NULL if it is not one or does not fit. */
static const char *read_string(const char *at, char *out, size_t size)
{
    size_t used = 0;
    if (*at++ != '"')
        return NULL;
    for (; *at && *at != '"'; at++) {
        unsigned code;
        if (used + 4 >= size)
            return NULL;
        if (*at != '\\') {
            out[used++] = *at;
            continue;
        }
        switch (*++at) {
        case 'n': out[used++] = '\n'; break;
        case 't': out[used++] = '\t'; break;
        case 'r': out[used++] = '\r'; break;
        case 'b': out[used++] = '\b'; break;
        case 'f': out[used++] = '\f'; break;
        case '"': case '\\': case '/': out[used++] = *at; break;
        case 'u':
            if (sscanf(at + 1, "%4x", &code) != 1)
                return NULL;
            used += put_utf8(out + used, code);
            at += 4;
            break;
        default: return NULL;
        }
    }
    out[used] = 0;
    return *at == '"' ? at + 1 : NULL;
}

static const char *read_value(const char *at, document *doc, const char *path);

/* Read an object or an array, whose first character is `open`. */
static const char *read_members(const char *at, document *doc, const char *path, char open)
{
    char close = open == '{' ? '}' : ']', key[VALUE_SIZE], below[PATH_SIZE + VALUE_SIZE];
    int members = 0;
    const char *dot = *path ? "." : "";

    at = skip(at + 1);
    while (*at != close) {
        if (members && *at++ != ',')
            return NULL;
        at = skip(at);
        if (open == '{') {
            at = read_string(at, key, sizeof key);
            if (!at || *(at = skip(at)) != ':')
                return NULL;
            at++;
        } else {
            snprintf(key, sizeof key, "%d", members);
        }
        if (snprintf(below, sizeof below, "%s%s%s", path, dot, key) >= PATH_SIZE)
            return NULL;
        at = read_value(at, doc, below);
        if (!at)
            return NULL;
        at = skip(at);
        members++;
    }
    snprintf(below, sizeof below, "%s%s#", path, dot);
    snprintf(key, sizeof key, "%d", members);
    add(doc, below, key);
    return at + 1;
}

static const char *read_value(const char *at, document *doc, const char *path)
{
    char value[VALUE_SIZE];
    size_t length;

    at = skip(at);
    if (*at == '{' || *at == '[')
        return read_members(at, doc, path, *at);
    if (*at == '"') {
        at = read_string(at, value, sizeof value);
        if (at)
            add(doc, path, value);
        return at;
    }
    length = strcspn(at, " \t\r\n,]}"); /* a number, true, false or null */
    if (!length || length >= sizeof value)
        return NULL;
    memcpy(value, at, length);
    value[length] = 0;
    add(doc, path, value);
    return at + length;
}

bool json_flatten(const char *text, document *out)
{
    const char *end;
    memset(out, 0, sizeof *out);
    end = read_value(text, out, "");
    if (end && !*skip(end)) {
        qsort(out->pairs, out->count, sizeof *out->pairs, by_path); /* a reading looks up hundreds */
        return true;
    }
    json_free(out);
    return false;
}

const char *json_get(const document *doc, const char *path)
{
    pair wanted = {(char *)path, NULL};
    const pair *found =
        doc->count ? bsearch(&wanted, doc->pairs, doc->count, sizeof wanted, by_path) : NULL;
    return found ? found->value : NULL;
}

void json_free(document *doc)
{
    for (size_t i = 0; i < doc->count; i++) {
        free(doc->pairs[i].path);
        free(doc->pairs[i].value);
    }
    free(doc->pairs);
    memset(doc, 0, sizeof *doc);
}
