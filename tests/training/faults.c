/* Counts the file operations of a process below a folder, and makes the nth of them go wrong.

   Preloaded (LD_PRELOAD); quiet until `fault_begin` is called. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NOTHING, KILL, ERROR, NO_SPACE, FULL, SHORT, TORN };
enum { READS = 0, GROWS = 1, WRITES = 2 };

static char root[PATH_MAX];
static long at, count;
static int how, trace = -1;

void fault_begin(const char *folder, long number, int kind, int fd) {
  strncpy(root, folder, sizeof root - 1);
  at = number, how = kind, trace = fd, count = 0;
}

static int below(const char *path) { return root[0] && !strncmp(path, root, strlen(root)); }

static int name_of(int fd, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = syscall(SYS_readlink, link, path, PATH_MAX - 1);
  path[n > 0 ? n : 0] = 0;
  return n > 0;
}

/* The fault of this operation, NOTHING for almost all. */
static int fault(const char *name, const char *path, int kind) {
  long n = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
  if (trace >= 0) {
    char line[PATH_MAX + 64];
    int size = snprintf(line, sizeof line, "%s %d %s\n", name, kind, path + strlen(root));
    syscall(SYS_write, trace, line, size);
  }
  if (!at || n < at || (n > at && how != FULL)) return NOTHING;
  if (how == KILL) syscall(SYS_kill, getpid(), SIGKILL);
  if (how == ERROR) { errno = EIO; return ERROR; }
  if ((how == NO_SPACE || how == FULL) && kind != READS) { errno = ENOSPC; return ERROR; }
  if ((how == SHORT || how == TORN) && kind == WRITES) return how;
  return NOTHING;
}

static int fault_at(const char *name, int dir, const char *path, int kind) {
  char whole[2 * PATH_MAX] = "";
  if (!root[0] || !path) return NOTHING;
  if (path[0] != '/' && dir != AT_FDCWD && name_of(dir, whole)) strcat(whole, "/");
  strncat(whole, path, PATH_MAX - 1);
  return below(whole) ? fault(name, whole, kind) : NOTHING;
}

static int fault_fd(const char *name, int fd, int kind) {
  char path[PATH_MAX];
  return root[0] && name_of(fd, path) && below(path) ? fault(name, path, kind) : NOTHING;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name, dir, ...)                                                       \
  {                                                                                \
    va_list rest;                                                                  \
    va_start(rest, flags);                                                         \
    int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, int) : 0;            \
    va_end(rest);                                                                  \
    if (fault_at("open", dir, path, flags & O_CREAT ? GROWS : READS)) return -1;   \
    return REAL(name)(__VA_ARGS__, flags, mode);                                   \
  }
int open(const char *path, int flags, ...) OPEN(open, AT_FDCWD, path)
int open64(const char *path, int flags, ...) OPEN(open64, AT_FDCWD, path)
int openat(int dir, const char *path, int flags, ...) OPEN(openat, dir, dir, path)
int openat64(int dir, const char *path, int flags, ...) OPEN(openat64, dir, dir, path)

ssize_t write(int fd, const void *data, size_t size) {
  int found = fault_fd("write", fd, WRITES);
  if (found == ERROR) return -1;
  if (found == NOTHING) return REAL(write)(fd, data, size);
  ssize_t half = REAL(write)(fd, data, (size + 1) / 2);
  if (found == TORN) syscall(SYS_kill, getpid(), SIGKILL);
  return half;
}
ssize_t writev(int fd, const struct iovec *parts, int number) {
  int found = fault_fd("writev", fd, WRITES);
  if (found == ERROR) return -1;
  return found == NOTHING ? REAL(writev)(fd, parts, number) : REAL(writev)(fd, parts, 1);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t place) {
  if (fault_fd("pwrite", fd, GROWS)) return -1;
  return REAL(pwrite64)(fd, data, size, place);
}
int ftruncate64(int fd, off64_t size) {
  return fault_fd("truncate", fd, READS) ? -1 : REAL(ftruncate64)(fd, size);
}
int fsync(int fd) { return fault_fd("fsync", fd, GROWS) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fault_fd("fsync", fd, GROWS) ? -1 : REAL(fdatasync)(fd); }
int rename(const char *old, const char *new) {
  return fault_at("rename", AT_FDCWD, new, GROWS) ? -1 : REAL(rename)(old, new);
}
int mkdir(const char *path, mode_t mode) {
  return fault_at("mkdir", AT_FDCWD, path, GROWS) ? -1 : REAL(mkdir)(path, mode);
}
int mkdirat(int dir, const char *path, mode_t mode) {
  return fault_at("mkdir", dir, path, GROWS) ? -1 : REAL(mkdirat)(dir, path, mode);
}
int unlink(const char *path) {
  return fault_at("unlink", AT_FDCWD, path, READS) ? -1 : REAL(unlink)(path);
}
int unlinkat(int dir, const char *path, int flags) {
  return fault_at("unlink", dir, path, READS) ? -1 : REAL(unlinkat)(dir, path, flags);
}
int rmdir(const char *path) {
  return fault_at("rmdir", AT_FDCWD, path, READS) ? -1 : REAL(rmdir)(path);
}
int chmod(const char *path, mode_t mode) {
  return fault_at("chmod", AT_FDCWD, path, READS) ? -1 : REAL(chmod)(path, mode);
}
int fchmodat(int dir, const char *path, mode_t mode, int flags) {
  return fault_at("chmod", dir, path, READS) ? -1 : REAL(fchmodat)(dir, path, mode, flags);
}
