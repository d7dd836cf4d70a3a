/* Input/output errors of a failing disk, for the files below one directory.

   A library for LD_PRELOAD. Its functions count the calls that name a path below the directory, or
   use a descriptor of such a path. From the chosen call on, that function fails with EIO for that
   path; a disk does not recover by itself. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char root[PATH_MAX];
static long chosen, calls;
static char failed_call[32], failed_path[PATH_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Call number `at` below `directory` fails; none does if it is 0. */
void io_errors_arm(const char *directory, long at) {
    pthread_mutex_lock(&lock);
    snprintf(root, sizeof root, "%s", directory);
    chosen = at;
    calls = 0;
    failed_call[0] = failed_path[0] = 0;
    pthread_mutex_unlock(&lock);
}

long io_errors_calls(void) { return calls; }
const char *io_errors_call(void) { return failed_call; }
const char *io_errors_path(void) { return failed_path; }

static int of_descriptor(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    return 1;
}

static int fails(const char *call, int directory, const char *name) {
    char path[2 * PATH_MAX];
    int before = errno, failing = 0;
    if (!root[0])
        return 0;
    if (name && name[0] == '/')
        snprintf(path, sizeof path, "%s", name);
    else if (directory == AT_FDCWD || !of_descriptor(directory, path)) {
        errno = before;
        return 0;
    } else if (name)
        snprintf(path + strlen(path), sizeof path - strlen(path), "/%s", name);
    pthread_mutex_lock(&lock);
    size_t size = strlen(root);
    if (!strncmp(path, root, size) && (path[size] == '/' || !path[size])) {
        calls++;
        if (calls == chosen) {
            snprintf(failed_call, sizeof failed_call, "%s", call);
            snprintf(failed_path, sizeof failed_path, "%.*s", PATH_MAX - 1, path);
        }
        failing = failed_call[0] && !strcmp(call, failed_call) && !strcmp(path, failed_path);
    }
    pthread_mutex_unlock(&lock);
    errno = failing ? EIO : before;
    return failing;
}

#define NEXT(name) \
    static typeof(name) *next; \
    if (!next) \
        next = (typeof(next))dlsym(RTLD_NEXT, #name)

#define ON_DESCRIPTOR(type, name, call, parameters, arguments) \
    type name parameters { \
        NEXT(name); \
        return fails(call, descriptor, NULL) ? -1 : next arguments; \
    }

#define BELOW(name, call, parameters, arguments, directory, path) \
    int name parameters { \
        NEXT(name); \
        return fails(call, directory, path) ? -1 : next arguments; \
    }

ON_DESCRIPTOR(ssize_t, read, "read", (int descriptor, void *to, size_t size),
              (descriptor, to, size))
ON_DESCRIPTOR(ssize_t, pread, "read", (int descriptor, void *to, size_t size, off_t at),
              (descriptor, to, size, at))
ON_DESCRIPTOR(ssize_t, pread64, "read", (int descriptor, void *to, size_t size, off64_t at),
              (descriptor, to, size, at))
ON_DESCRIPTOR(ssize_t, write, "write", (int descriptor, const void *from, size_t size),
              (descriptor, from, size))
ON_DESCRIPTOR(int, fsync, "fsync", (int descriptor), (descriptor))
ON_DESCRIPTOR(int, fdatasync, "fsync", (int descriptor), (descriptor))

BELOW(linkat, "link",
      (int from, const char *old, int to, const char *new, int flags),
      (from, old, to, new, flags), to, new)
BELOW(renameat, "rename", (int from, const char *old, int to, const char *new),
      (from, old, to, new), to, new)
BELOW(rename, "rename", (const char *old, const char *new), (old, new), AT_FDCWD, new)
BELOW(unlinkat, "unlink", (int directory, const char *name, int flags), (directory, name, flags),
      directory, name)
BELOW(unlink, "unlink", (const char *name), (name), AT_FDCWD, name)
BELOW(mkdirat, "mkdir", (int directory, const char *name, mode_t mode), (directory, name, mode),
      directory, name)
BELOW(mkdir, "mkdir", (const char *name, mode_t mode), (name, mode), AT_FDCWD, name)
BELOW(fstatat64, "stat", (int directory, const char *name, struct stat64 *to, int flags),
      (directory, name, to, flags), directory, name)
BELOW(fstatat, "stat", (int directory, const char *name, struct stat *to, int flags),
      (directory, name, to, flags), directory, name)
BELOW(stat64, "stat", (const char *name, struct stat64 *to), (name, to), AT_FDCWD, name)
BELOW(lstat64, "stat", (const char *name, struct stat64 *to), (name, to), AT_FDCWD, name)

/* The mode is read in any case, as the C library itself does: it is in a register. */
#define OPENING(name, parameters, last, directory, arguments) \
    int name parameters { \
        NEXT(name); \
        va_list more; \
        va_start(more, last); \
        mode_t mode = va_arg(more, mode_t); \
        va_end(more); \
        return fails("open", directory, path) ? -1 : next arguments; \
    }
OPENING(open, (const char *path, int flags, ...), flags, AT_FDCWD, (path, flags, mode))
OPENING(open64, (const char *path, int flags, ...), flags, AT_FDCWD, (path, flags, mode))
OPENING(openat, (int directory, const char *path, int flags, ...), flags, directory,
        (directory, path, flags, mode))
OPENING(openat64, (int directory, const char *path, int flags, ...), flags, directory,
        (directory, path, flags, mode))

#define LISTING(name, type) \
    struct type *name(DIR *directory) { \
        NEXT(name); \
        return fails("list", dirfd(directory), NULL) ? NULL : next(directory); \
    }
LISTING(readdir, dirent)
LISTING(readdir64, dirent64)
