/* Kills the program in front of one of its writes. Loaded in front of the C library (LD_PRELOAD), it counts what the program
 * writes to files and sockets and what it syncs, from the moment it prints the line `the sweep begins`, and sends it SIGKILL
 * in front of the one whose number is in KILL_AT. What the program writes to terminals, pipes and events does not count.
 *
 * cc -shared -fPIC -O1 -o writes.so writes.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static const char mark[] = "the sweep begins";
static atomic_long left;
static atomic_int begun;

static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_pwrite)(int, const void *, size_t, off64_t);
static ssize_t (*real_send)(int, const void *, size_t, int);
static ssize_t (*real_sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
static ssize_t (*real_sendmsg)(int, const struct msghdr *, int);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

__attribute__((constructor)) static void begin(void) {
    real_write = dlsym(RTLD_NEXT, "write");
    real_writev = dlsym(RTLD_NEXT, "writev");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_send = dlsym(RTLD_NEXT, "send");
    real_sendto = dlsym(RTLD_NEXT, "sendto");
    real_sendmsg = dlsym(RTLD_NEXT, "sendmsg");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    const char *at = getenv("KILL_AT");
    atomic_store(&left, at ? atol(at) : 0);
}

static void count(int fd) {
    struct stat what;
    if (!atomic_load(&begun) || fstat(fd, &what) || !(S_ISREG(what.st_mode) || S_ISSOCK(what.st_mode))) return;
    if (atomic_fetch_sub(&left, 1) == 1) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
}

ssize_t write(int fd, const void *bytes, size_t length) {
    if (memmem(bytes, length, mark, sizeof mark - 1)) atomic_store(&begun, 1);
    else count(fd);
    return real_write(fd, bytes, length);
}

ssize_t writev(int fd, const struct iovec *parts, int number) {
    count(fd);
    return real_writev(fd, parts, number);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) {
    count(fd);
    return real_pwrite(fd, bytes, length, at);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) {
    count(fd);
    return real_pwrite(fd, bytes, length, at);
}

ssize_t send(int fd, const void *bytes, size_t length, int flags) {
    count(fd);
    return real_send(fd, bytes, length, flags);
}

ssize_t sendto(int fd, const void *bytes, size_t length, int flags, const struct sockaddr *to, socklen_t to_length) {
    count(fd);
    return real_sendto(fd, bytes, length, flags, to, to_length);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    count(fd);
    return real_sendmsg(fd, message, flags);
}

int fsync(int fd) {
    count(fd);
    return real_fsync(fd);
}

int fdatasync(int fd) {
    count(fd);
    return real_fdatasync(fd);
}
