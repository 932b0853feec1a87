/* Preloaded into a process of `failed-sync`: records every write, truncation and sync of files in one directory, and makes
 * one sync fail with EIO. Which: HEADWATER_LAB_FAIL_AT, counted over files that end in .db or -wal, from 1; 0 for none.
 * Where: HEADWATER_LAB_WATCH. The record goes to HEADWATER_LAB_RECORD:
 *   'O' file name_length name | 'U' 0 name_length name (unlinked) | 'W' file offset length bytes | 'T' file size | 'S' file | 'F' file (the sync that failed)
 * with all numbers as 64 bits of this machine. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define FILES 4096
static char names[FILES][512];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int record = -1;
static long syncs;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static void put(const void *bytes, size_t length) {
    ssize_t (*write_)(int, const void *, size_t) = real("write");
    const char *at = bytes;
    while (length > 0) {
        ssize_t done = write_(record, at, length);
        if (done <= 0) abort();
        at += done;
        length -= (size_t)done;
    }
}

static void put_number(int64_t number) { put(&number, sizeof number); }

static void put_head(char kind, int fd) { put(&kind, 1); put_number((int64_t)fd); }

/* Called with the lock held. */
static int watched(int fd) { return fd >= 0 && fd < FILES && names[fd][0] != 0; }

/* Whether a path is in the directory; the shared memory of a write-ahead log is not on the disk. */
static int inside(const char *path) {
    const char *watch = getenv("HEADWATER_LAB_WATCH");
    return path != NULL && watch != NULL && strncmp(path, watch, strlen(watch)) == 0 &&
           path[strlen(watch)] == '/' && strstr(path, "-shm") == NULL;
}

static void put_name(char kind, int fd, const char *path) {
    if (record < 0) {
        int (*open_)(const char *, int, ...) = real("open");
        record = open_(getenv("HEADWATER_LAB_RECORD"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    put_head(kind, fd);
    put_number((int64_t)strlen(path));
    put(path, strlen(path));
}

static void opened(int fd, const char *path) {
    if (fd < 0 || fd >= FILES) return;
    pthread_mutex_lock(&lock);
    names[fd][0] = 0;
    if (inside(path)) {
        strncpy(names[fd], path, sizeof names[fd] - 1);
        put_name('O', fd, path);
    }
    pthread_mutex_unlock(&lock);
}

int unlink(const char *path) {
    int (*unlink_)(const char *) = real("unlink");
    pthread_mutex_lock(&lock);
    int done = unlink_(path);
    if (done == 0 && inside(path)) put_name('U', 0, path);
    pthread_mutex_unlock(&lock);
    return done;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        int (*open_)(const char *, int, ...) = real(#name); \
        int fd = open_(path, flags, mode); opened(fd, path); return fd; \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        int (*open_)(int, const char *, int, ...) = real(#name); \
        int fd = open_(at, path, flags, mode); opened(fd, path); return fd; \
    }
OPENAT(openat)
OPENAT(openat64)

int close(int fd) {
    int (*close_)(int) = real("close");
    pthread_mutex_lock(&lock);
    if (watched(fd)) names[fd][0] = 0;
    pthread_mutex_unlock(&lock);
    return close_(fd);
}

static void wrote(int fd, int64_t offset, const void *bytes, ssize_t length) {
    if (length <= 0) return;
    put_head('W', fd);
    put_number(offset);
    put_number((int64_t)length);
    put(bytes, (size_t)length);
}

ssize_t write(int fd, const void *bytes, size_t length) {
    ssize_t (*write_)(int, const void *, size_t) = real("write");
    pthread_mutex_lock(&lock);
    int is = watched(fd);
    ssize_t done = write_(fd, bytes, length);
    if (is && done > 0) wrote(fd, lseek(fd, 0, SEEK_CUR) - done, bytes, done);
    pthread_mutex_unlock(&lock);
    return done;
}

#define PWRITE(name) \
    ssize_t name(int fd, const void *bytes, size_t length, off_t offset) { \
        ssize_t (*write_)(int, const void *, size_t, off_t) = real(#name); \
        pthread_mutex_lock(&lock); \
        ssize_t done = write_(fd, bytes, length, offset); \
        if (watched(fd)) wrote(fd, offset, bytes, done); \
        pthread_mutex_unlock(&lock); \
        return done; \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define TRUNCATE(name) \
    int name(int fd, off_t size) { \
        int (*truncate_)(int, off_t) = real(#name); \
        pthread_mutex_lock(&lock); \
        int done = truncate_(fd, size); \
        if (done == 0 && watched(fd)) { put_head('T', fd); put_number((int64_t)size); } \
        pthread_mutex_unlock(&lock); \
        return done; \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

static int synced(int fd, const char *name) {
    int (*sync_)(int) = real(name);
    pthread_mutex_lock(&lock);
    int done = 0, fails = 0;
    if (watched(fd)) {
        size_t length = strlen(names[fd]);
        int counts = (length > 3 && strcmp(names[fd] + length - 3, ".db") == 0) ||
                     (length > 4 && strcmp(names[fd] + length - 4, "-wal") == 0);
        const char *at = getenv("HEADWATER_LAB_FAIL_AT");
        fails = counts && at != NULL && ++syncs == atol(at);
        put_head(fails ? 'F' : 'S', fd);
    } else {
        done = sync_(fd);
    }
    pthread_mutex_unlock(&lock);
    if (fails) { errno = EIO; return -1; }
    return done;
}

int fsync(int fd) { return synced(fd, "fsync"); }
int fdatasync(int fd) { return synced(fd, "fdatasync"); }
