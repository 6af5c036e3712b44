/* Makes system calls of a process fail as a trigger file says. Built and preloaded by
 * test_failing_sync.py; reaches every file of the process, RocksDB's too.
 *
 * The environment's FAILING_SYNC names the trigger file. While it holds the line
 *
 *     CALL ERROR PART
 *
 * calls on files whose path contains PART (ends with it, when PART ends with '$') fail:
 *
 *     sync  EIO     fsync and fdatasync
 *     write EIO     write, pwrite, pwritev, posix_fallocate
 *     write ENOSPC  the same
 *     write SHORT   pwritev and pwrite write half of the bytes, and say so
 *
 * Each failure is noted in the file of that name with ".hits" behind it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PASS = 0, SHORT = -1 };

static int path_matches(const char *path, const char *part) {
    size_t length = strlen(part), whole = strlen(path);
    if (length && part[length - 1] == '$')
        return whole >= length - 1 && !strncmp(path + whole - (length - 1), part, length - 1);
    return strstr(path, part) != NULL;
}

static void note(const char *trigger, const char *call, const char *path) {
    char name[4096], line[4352];
    snprintf(name, sizeof name, "%s.hits", trigger);
    int length = snprintf(line, sizeof line, "%s %s\n", call, path);
    int fd = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0) {
        syscall(SYS_write, fd, line, (size_t)length);
        syscall(SYS_close, fd);
    }
}

/* The errno with which `call` on `fd` is to fail; PASS or SHORT. */
static int verdict(const char *call, int fd) {
    const char *trigger = getenv("FAILING_SYNC");
    if (trigger == NULL)
        return PASS;
    int file = syscall(SYS_openat, AT_FDCWD, trigger, O_RDONLY | O_CLOEXEC, 0);
    if (file < 0)
        return PASS;
    char text[512], which[16], error[16], part[256], link[64], path[4096];
    ssize_t length = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    if (length <= 0)
        return PASS;
    text[length] = 0;
    if (sscanf(text, "%15s %15s %255s", which, error, part) != 3 || strcmp(which, call))
        return PASS;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return PASS;
    path[length] = 0;
    if (!path_matches(path, part))
        return PASS;
    note(trigger, call, path);
    if (!strcmp(error, "SHORT"))
        return SHORT;
    return !strcmp(error, "ENOSPC") ? ENOSPC : EIO;
}

static void *next(const char *name) {
    return dlsym(RTLD_NEXT, name);
}

static int fail(int error) {
    errno = error;
    return -1;
}

int fsync(int fd) {
    static int (*real)(int);
    int error = verdict("sync", fd);
    if (error > 0)
        return fail(error);
    if (!real)
        real = (int (*)(int))next("fsync");
    return real(fd);
}

int fdatasync(int fd) {
    static int (*real)(int);
    int error = verdict("sync", fd);
    if (error > 0)
        return fail(error);
    if (!real)
        real = (int (*)(int))next("fdatasync");
    return real(fd);
}

ssize_t write(int fd, const void *bytes, size_t count) {
    static ssize_t (*real)(int, const void *, size_t);
    int error = fd > 2 ? verdict("write", fd) : PASS;
    if (error > 0)
        return fail(error);
    if (!real)
        real = (ssize_t(*)(int, const void *, size_t))next("write");
    return real(fd, bytes, count);
}

static ssize_t positioned(int fd, const struct iovec *parts, int count, off_t at) {
    static ssize_t (*real)(int, const struct iovec *, int, off_t);
    int error = verdict("write", fd);
    if (error > 0)
        return fail(error);
    if (!real)
        real = (ssize_t(*)(int, const struct iovec *, int, off_t))next("pwritev64");
    if (error == SHORT && count > 1)
        return real(fd, parts, count / 2, at);
    if (error == SHORT && parts[0].iov_len > 1) {
        struct iovec half = {parts[0].iov_base, parts[0].iov_len / 2};
        return real(fd, &half, 1, at);
    }
    return real(fd, parts, count, at);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    return positioned(fd, parts, count, at);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at) {
    return positioned(fd, parts, count, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off_t at) {
    struct iovec one = {(void *)bytes, count};
    return positioned(fd, &one, 1, at);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
    return pwrite64(fd, bytes, count, at);
}

static int allocate(int fd, off_t at, off_t length) {
    static int (*real)(int, off_t, off_t);
    int error = verdict("write", fd);
    if (error > 0)
        return error;
    if (!real)
        real = (int (*)(int, off_t, off_t))next("posix_fallocate64");
    return real(fd, at, length);
}

int posix_fallocate(int fd, off_t at, off_t length) {
    return allocate(fd, at, length);
}

int posix_fallocate64(int fd, off_t at, off_t length) {
    return allocate(fd, at, length);
}
