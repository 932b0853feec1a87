/* A disk that loses what Linux loses. Loaded in front of the C library (LD_PRELOAD), it keeps in DISK_FOLDER what a power cut
 * would leave of each `store.db*`: pages reach it when a sync succeeds. While the file DISK_FAILS exists, syncs fail with EIO,
 * and dirty pages count as clean: no later sync writes them, unless they are written again. Truncating and removing reach
 * the disk at once, which is one of the possible outcomes.
 *
 * cc -shared -fPIC -O1 -o disk.so disk.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 4096, FILES = 8, PAGES = 65536 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char name[256];
    unsigned char dirty[PAGES];
} files[FILES];

static ssize_t (*real_pwrite)(int, const void *, size_t, off64_t);
static ssize_t (*real_write)(int, const void *, size_t);
static int (*real_fsync)(int);
static int (*real_ftruncate)(int, off64_t);
static int (*real_unlink)(const char *);

__attribute__((constructor)) static void begin(void) {
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_write = dlsym(RTLD_NEXT, "write");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
}

/* Which of the store's files a descriptor is; -1 for others. SQLite's index of the log is not on the disk after a power cut. */
static int which(int fd) {
    char link[64], path[1024];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return -1;
    path[length] = 0;
    const char *name = strrchr(path, '/');
    if (!name || strncmp(name, "/store.db", 9) || strstr(name, "-shm") || strstr(path, getenv("DISK_FOLDER"))) return -1;
    for (int at = 0; at < FILES; at++) {
        if (!files[at].name[0]) strncpy(files[at].name, name + 1, sizeof files[at].name - 1);
        if (!strcmp(files[at].name, name + 1)) return at;
    }
    abort();
}

static int on_disk(int file) {
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", getenv("DISK_FOLDER"), files[file].name);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0) abort();
    return fd;
}

static void wrote(int fd, off64_t from, ssize_t bytes) {
    pthread_mutex_lock(&lock);
    int file = bytes > 0 ? which(fd) : -1;
    if (file >= 0)
        for (off64_t page = from / PAGE; page <= (from + bytes - 1) / PAGE; page++) {
            if (page >= PAGES) abort();
            files[file].dirty[page] = 1;
        }
    pthread_mutex_unlock(&lock);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
    ssize_t done = real_pwrite(fd, bytes, count, at);
    wrote(fd, at, done);
    return done;
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) { return pwrite64(fd, bytes, count, at); }

ssize_t write(int fd, const void *bytes, size_t count) {
    off64_t at = lseek64(fd, 0, SEEK_CUR);
    ssize_t done = real_write(fd, bytes, count);
    if (at >= 0) wrote(fd, at, done);
    return done;
}

int fsync(int fd) {
    pthread_mutex_lock(&lock);
    int file = which(fd), failed = 0;
    if (file >= 0) {
        failed = access(getenv("DISK_FAILS"), F_OK) == 0;
        int disk = on_disk(file);
        for (int page = 0; page < PAGES; page++) {
            char bytes[PAGE];
            if (!files[file].dirty[page]) continue;
            files[file].dirty[page] = 0;
            ssize_t count = pread(fd, bytes, PAGE, (off_t)page * PAGE);
            if (!failed && count > 0) real_pwrite(disk, bytes, count, (off64_t)page * PAGE);
        }
        close(disk);
    }
    pthread_mutex_unlock(&lock);
    if (!failed) return real_fsync(fd);
    errno = EIO;
    return -1;
}

int fdatasync(int fd) { return fsync(fd); }

int ftruncate64(int fd, off64_t length) {
    pthread_mutex_lock(&lock);
    int file = which(fd);
    if (file >= 0) {
        int disk = on_disk(file);
        if (real_ftruncate(disk, length)) abort();
        close(disk);
    }
    pthread_mutex_unlock(&lock);
    return real_ftruncate(fd, length);
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

int unlink(const char *path) {
    const char *name = strrchr(path, '/');
    if (name && !strncmp(name, "/store.db", 9)) {
        char gone[2048];
        snprintf(gone, sizeof gone, "%s%s", getenv("DISK_FOLDER"), name);
        real_unlink(gone);
    }
    return real_unlink(path);
}
