// The socket to abstim, the memory shared with it, and the errors of the thread.
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static int socket_file = -1, memory_file = -1;
static pthread_mutex_t mutex;
static pthread_mutexattr_t recursive;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint8_t *payload_buffer;
static size_t payload_bytes_held, payload_room;
static uint64_t memory_start, memory_end;
static __thread Error last_error;
static Error lasting_error;
static int forked;  // and not said yet

static void fatal(const char *what) {
    fprintf(stderr, "abstim: %s\n", what);
    _exit(2);
}

static void lost(void) {
    if (errno == EBADF || errno == ENOTSOCK) fatal("the program closed a file that it did not open, the way to its GPU");
    _exit(2);  // abstim has ended and said why
}

static void write_all(const void *data, size_t bytes) {
    const uint8_t *at = data;
    while (bytes) {
        ssize_t written = write(socket_file, at, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) lost();
        at += written, bytes -= (size_t)written;
    }
}

static void read_all(void *data, size_t bytes) {
    uint8_t *at = data;
    while (bytes) {
        ssize_t found = read(socket_file, at, bytes);
        if (found < 0 && errno == EINTR) continue;
        if (found <= 0) lost();
        at += found, bytes -= (size_t)found;
    }
}

static int file_named(const char *variable) {
    const char *text = getenv(variable);
    if (!text) fatal("the CUDA runtime of abstim works in a program that `abstim app` starts, not by itself");
    return atoi(text);
}

// CUDA's context does not survive a fork, nor does ours: in the child every call fails
static void after_fork(void) {
    lasting_error = INITIALIZATION_ERROR, forked = 1;
    forget_pending();
    pthread_mutex_init(&mutex, &recursive);
}

// One process has the device at a time: another one waits for its end, but not for that of its own parent
static int alone(void) {
    for (int tries = 0; tries < 200; tries++) {
        struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1}, held = whole;
        if (!fcntl(memory_file, F_SETLK, &whole)) return 1;
        if (!fcntl(memory_file, F_GETLK, &held) && held.l_type != F_UNLCK && held.l_pid == getppid()) break;
        usleep(100000);
    }
    fprintf(stderr, "abstim: a second process of the program asks for the GPU while the first has it; it gets none\n");
    lasting_error = INITIALIZATION_ERROR;
    return 0;
}

// A program that computes on the host would not notice for long that abstim has ended
static void end_with_parent(void) {
    const char *parent = getenv("ABSTIM_APP_PARENT");
    if (parent && getppid() == atoi(parent)) prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void begin(void) {
    end_with_parent();
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&mutex, &recursive);
    socket_file = file_named("ABSTIM_APP_SOCKET");
    memory_file = file_named("ABSTIM_APP_MEMORY");
    if (!alone()) return;
    struct hello_request request = {getpid()};
    struct hello_reply reply;
    uint32_t head[2] = {MESSAGE_HELLO, 0}, answer[2];
    write_all(head, sizeof head);
    write_all(&request, sizeof request);
    read_all(answer, sizeof answer);
    read_all(&reply, sizeof reply);
    memory_start = reply.memory_start, memory_end = reply.memory_start + reply.memory_bytes;
    // Device addresses are host addresses: memory is mapped where the GPU has it
    void *found = mmap((void *)memory_start, reply.memory_bytes, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, memory_file, 0);
    if (found != (void *)memory_start) fatal("the program uses the addresses that device memory has; it cannot run");
    atexit(print_pending);
    pthread_atfork(NULL, NULL, after_fork);
}

void connect_once(void) { pthread_once(&once, begin); }

void lock(void) {
    connect_once();
    pthread_mutex_lock(&mutex);
}

void unlock(void) { pthread_mutex_unlock(&mutex); }

void tell(uint32_t message, const void *request, size_t request_bytes, const void *payload, size_t payload_bytes) {
    uint32_t head[2] = {message, (uint32_t)payload_bytes};
    lock();
    if (lasting_error == INITIALIZATION_ERROR) {
        unlock();
        return;
    }
    write_all(head, sizeof head);
    write_all(request, request_bytes);
    write_all(payload, payload_bytes);
    unlock();
}

// The caller holds the lock if it wants the payload.
Error ask(uint32_t message, const void *request, size_t request_bytes, const void *payload, size_t payload_bytes,
          void *reply, size_t reply_bytes) {
    uint32_t answer[2];
    lock();
    if (lasting_error == INITIALIZATION_ERROR) {
        if (forked) fprintf(stderr, "abstim: a process that the program forked asks for the GPU; it gets none\n");
        forked = 0;
        memset(reply, 0, reply_bytes), payload_bytes_held = 0;
        unlock();
        return INITIALIZATION_ERROR;
    }
    tell(message, request, request_bytes, payload, payload_bytes);
    read_all(answer, sizeof answer);
    read_all(reply, reply_bytes);
    payload_bytes_held = answer[1];
    if (payload_bytes_held > payload_room) payload_buffer = realloc(payload_buffer, payload_room = payload_bytes_held);
    read_all(payload_buffer, payload_bytes_held);
    unlock();
    return (Error)answer[0];
}

const uint8_t *reply_payload(size_t *bytes) {
    *bytes = payload_bytes_held;
    return payload_buffer;
}

int on_device(const void *address) {
    connect_once();
    return (uint64_t)address >= memory_start && (uint64_t)address < memory_end;
}

// Pages of the host become those of device memory: the same bytes at both addresses. What they held is kept.
int share_pages(void *host, void *device, size_t bytes) {
    memcpy(device, host, bytes);
    return mmap(host, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory_file,
                (off_t)((uint64_t)device - memory_start)) == host;
}

int unshare_pages(void *host, const void *device, size_t bytes) {
    void *own = mmap(host, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (own == host) memcpy(host, device, bytes);
    return own == host;
}

Error failed(Error error) {
    if (!error) error = lasting_error;
    if (error && error != NOT_READY) last_error = error;
    return error;
}

Error swap_last_error(Error error) {
    Error before = last_error;
    last_error = error;
    return before;
}

Error sticky(Error error) {
    if (error) lasting_error = error;
    return failed(error);
}

Error missing(const char *name) {
    char nothing;
    tell(MESSAGE_MISSING, &nothing, 0, name, strlen(name));
    return failed(NOT_SUPPORTED);
}

PUBLIC Error cudaGetLastError(void) {
    Error found = last_error ? last_error : lasting_error;
    last_error = SUCCESS;
    return found;
}

PUBLIC Error cudaPeekAtLastError(void) { return last_error ? last_error : lasting_error; }
