/* Records what a process writes to files named data.mdb, in order; for LD_PRELOAD.
 *
 * One entry for each call, in the file that RATOON_WRITE_TRACE names:
 *     kind, offset, length    three 64-bit numbers
 *     the bytes               of a write
 * kind 1 is a write, 2 a new length (at `offset`), 3 a sync. Entries are written after the call
 * has succeeded, under one lock. A file opened with O_DSYNC would add a sync to each of its writes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, LENGTH = 2, SYNC = 3, FDS = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char watched[FDS], dsync[FDS];
static int trace = -1;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void put(const void *bytes, size_t length)
{
    const char *at = bytes;
    while (length > 0) {
        ssize_t done = REAL(write)(trace, at, length);
        if (done <= 0)
            _exit(99); /* a trace with a hole would prove nothing */
        at += done;
        length -= done;
    }
}

static void note(int kind, uint64_t offset, uint64_t length, const void *bytes)
{
    uint64_t head[3] = {kind, offset, length};
    put(head, sizeof head);
    if (bytes)
        put(bytes, length);
}

static int is_watched(int fd) { return fd >= 0 && fd < FDS && watched[fd]; }

static void wrote(int fd, uint64_t offset, const void *bytes, ssize_t length)
{
    note(WRITE, offset, length, bytes);
    if (dsync[fd])
        note(SYNC, 0, 0, NULL);
}

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & (O_CREAT | __O_TMPFILE)) {
        va_list rest;
        va_start(rest, flags);
        mode = va_arg(rest, mode_t);
        va_end(rest);
    }
    int fd = REAL(open)(path, flags, mode);
    size_t length = strlen(path);
    const char *name = getenv("RATOON_WRITE_TRACE");
    if (fd >= 0 && fd < FDS) {
        pthread_mutex_lock(&lock);
        watched[fd] = name && length >= 9 && !strcmp(path + length - 9, "/data.mdb");
        dsync[fd] = (flags & O_DSYNC) != 0;
        if (watched[fd] && trace < 0) {
            trace = REAL(open)(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
            if (trace < 0)
                _exit(99);
        }
        pthread_mutex_unlock(&lock);
    }
    return fd;
}

int close(int fd)
{
    if (is_watched(fd))
        watched[fd] = 0;
    return REAL(close)(fd);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset)
{
    if (!is_watched(fd))
        return REAL(pwrite)(fd, bytes, length, offset);
    pthread_mutex_lock(&lock);
    ssize_t done = REAL(pwrite)(fd, bytes, length, offset);
    if (done > 0)
        wrote(fd, offset, bytes, done);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t write(int fd, const void *bytes, size_t length)
{
    if (!is_watched(fd))
        return REAL(write)(fd, bytes, length);
    pthread_mutex_lock(&lock);
    off_t offset = lseek(fd, 0, SEEK_CUR);
    ssize_t done = REAL(write)(fd, bytes, length);
    if (done > 0)
        wrote(fd, offset, bytes, done);
    pthread_mutex_unlock(&lock);
    return done;
}

static void wrote_all(int fd, uint64_t offset, const struct iovec *parts, int count, ssize_t done)
{
    for (int i = 0; i < count && done > 0; i++) {
        ssize_t length = (ssize_t)parts[i].iov_len < done ? (ssize_t)parts[i].iov_len : done;
        wrote(fd, offset, parts[i].iov_base, length);
        offset += length;
        done -= length;
    }
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    if (!is_watched(fd))
        return REAL(writev)(fd, parts, count);
    pthread_mutex_lock(&lock);
    off_t offset = lseek(fd, 0, SEEK_CUR);
    ssize_t done = REAL(writev)(fd, parts, count);
    wrote_all(fd, offset, parts, count, done);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    if (!is_watched(fd))
        return REAL(pwritev)(fd, parts, count, offset);
    pthread_mutex_lock(&lock);
    ssize_t done = REAL(pwritev)(fd, parts, count, offset);
    wrote_all(fd, offset, parts, count, done);
    pthread_mutex_unlock(&lock);
    return done;
}

int ftruncate(int fd, off_t length)
{
    if (!is_watched(fd))
        return REAL(ftruncate)(fd, length);
    pthread_mutex_lock(&lock);
    int failed = REAL(ftruncate)(fd, length);
    if (!failed)
        note(LENGTH, length, 0, NULL);
    pthread_mutex_unlock(&lock);
    return failed;
}

static int synced(int fd, int failed)
{
    if (!failed && is_watched(fd)) {
        pthread_mutex_lock(&lock);
        note(SYNC, 0, 0, NULL);
        pthread_mutex_unlock(&lock);
    }
    return failed;
}

int fdatasync(int fd) { return synced(fd, REAL(fdatasync)(fd)); }

int fsync(int fd) { return synced(fd, REAL(fsync)(fd)); }
