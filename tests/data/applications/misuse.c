// What a program may do wrong, one way a run: `misuse WAY`.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef void *Handle;
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemcpy(void *, const void *, size_t, int), cudaMemset(void *, int, size_t);
int cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
int cudaStreamCreate(Handle *), cudaStreamSynchronize(Handle), cudaStreamDestroy(Handle), cudaStreamQuery(Handle);
int cudaStreamCreateWithPriority(Handle *, unsigned, int), cudaStreamGetPriority(Handle, int *), cudaEventCreateWithFlags(Handle *, unsigned);
int cudaHostAlloc(void **, size_t, unsigned), cudaHostGetFlags(unsigned *, void *), cudaMallocManaged(void **, size_t, unsigned);
int cudaDeviceGetDefaultMemPool(Handle *, int), cudaMemPoolSetAttribute(Handle, int, void *), cudaMemPoolGetAttribute(Handle, int, void *);
int cudaMallocAsync(void **, size_t, Handle), cudaFreeAsync(void *, Handle), cudaDeviceGetLimit(size_t *, int);
int cudaStreamBeginCapture(Handle, int), cudaStreamEndCapture(Handle, Handle *), cudaMemsetAsync(void *, int, size_t, Handle);
int cudaStreamWaitEvent(Handle, Handle, unsigned), cudaGraphInstantiate(Handle *, Handle, unsigned long long);
int cudaGraphExecUpdate(Handle, Handle, int *);
typedef struct { size_t width, height, depth; } Extent;
int cudaMalloc3DArray(Handle *, const int *, Extent, unsigned);
int cudaMemcpyAsync(void *, const void *, size_t, int, Handle);
int cudaEventCreate(Handle *), cudaEventRecord(Handle, Handle), cudaEventDestroy(Handle);

static char big[1 << 22], small[64];

static void copies(void) {
    char *a, *b;
    cudaMalloc((void **)&a, 64), cudaMalloc((void **)&b, 64), cudaMemset(b, 7, 64);
    printf("%d %d %d %d", cudaMemcpy(a, big, sizeof big, 1), cudaMemcpy(big, a, 65, 2), cudaMemset(a, 1, 1 << 24),
           cudaMemcpy(b, a + 60, 8, 3));
    printf(" %d %d %d", cudaMemcpy((void *)0x10, big, 16, 1), cudaMemcpy(a, (void *)0x10, 16, 1),
           cudaMemcpy(big, (void *)0x10, 16, 2));
    printf(" %d %d", cudaMemcpy2D(a, 16, big, 16, 16, 5, 1), cudaMemcpy(big, small, 8, 1));
    printf(" ; %d %d %d", cudaMemcpy(a, big, 64, 1), cudaMemcpy2D(a, 16, big, 32, 16, 4, 1), cudaMemcpy(small, b, 64, 2));
    printf(" %d\n", small[0] == 7 && small[63] == 7);
}

static void handles(void) {
    Handle stream, event, bad = (Handle)0xdeadbeef0;
    cudaStreamCreate(&stream), cudaEventCreate(&event);
    printf("%d %d %d %d", cudaStreamSynchronize(bad), cudaStreamQuery(bad), cudaStreamDestroy(bad), cudaEventRecord(bad, 0));
    printf(" %d %d %d", cudaMemcpyAsync(small, big, 8, 0, bad), cudaEventRecord(event, bad), cudaEventDestroy(bad));
    printf(" ; %d", cudaEventRecord(event, stream)), printf(" %d %d ; ", cudaStreamDestroy(stream), cudaEventDestroy(event));
    printf("%d %d\n", cudaStreamSynchronize(stream), cudaEventDestroy(event));
}

static void arguments(void) {
    char *a;
    Handle stream, pool;
    unsigned flags;
    unsigned long long most = 0;
    int priority;
    size_t limit;
    cudaMalloc((void **)&a, 64);
    printf("%d %d %d", cudaMemcpy2D(a, 16, big, 32, 32, 2, 1), cudaStreamCreateWithPriority(&stream, 8, 0), cudaEventCreateWithFlags(&stream, 64));
    printf(" %d %d %d ; ", cudaHostAlloc((void **)&a, 64, 64), cudaMallocManaged((void **)&a, 64, 0), cudaDeviceGetLimit(&limit, 99));
    cudaStreamCreateWithPriority(&stream, 1, -100), cudaStreamGetPriority(stream, &priority);
    cudaHostAlloc((void **)&a, 64, 4), cudaHostGetFlags(&flags, a), printf("%d %u ; ", priority, flags);
    cudaDeviceGetDefaultMemPool(&pool, 0), cudaMallocAsync((void **)&a, 4096, stream), cudaFreeAsync(a, stream);
    for (int k = 4; k < 9; k++) cudaMemPoolGetAttribute(pool, k, &most), printf("%llu ", most);
    most = 77, cudaMemPoolSetAttribute(pool, 4, &most), most = 0, cudaMemPoolSetAttribute(pool, 8, &most);
    for (int k = 4; k < 9; k++) cudaMemPoolGetAttribute(pool, k, &most), printf("%llu ", most);
    int format[5] = {32, 0, 0, 0, 2}, cube = 4;
    printf("; %d %d\n", cudaMalloc3DArray(&pool, format, (Extent){4, 4, 6}, cube), cudaMalloc3DArray(&pool, format, (Extent){4, 4, 5}, cube));
}

// What two streams do is captured: the second's work follows the first's, or stands alone; joined again, or not
static int captured(char *a, int follows, int joins, Handle *graph) {
    static Handle first, second, event;
    if (!first) cudaStreamCreate(&first), cudaStreamCreate(&second), cudaEventCreate(&event);
    cudaStreamBeginCapture(first, 0);
    if (!follows) cudaEventRecord(event, first), cudaStreamWaitEvent(second, event, 0);
    cudaMemsetAsync(a, 1, 64, first);
    if (follows) cudaEventRecord(event, first), cudaStreamWaitEvent(second, event, 0);
    cudaMemsetAsync(a, 2, 64, second);
    if (joins) cudaEventRecord(event, second), cudaStreamWaitEvent(first, event, 0);
    if (joins == 2) printf("%d ", cudaStreamSynchronize(first));
    if (joins == 3) printf("%d ", cudaMemset(a, 3, 64));
    if (joins == 4) printf("%d ", cudaMalloc((void **)&a, 64));
    return cudaStreamEndCapture(first, graph);
}

static void captures(void) {
    char *a;
    int result;
    Handle graph, other, executable;
    cudaMalloc((void **)&a, 64);
    for (int joins = 0; joins < 5; joins++) printf("%d ", captured(a, 1, joins, &graph));
    printf("; %d", captured(a, 1, 1, &graph)), printf(" %d", cudaGraphInstantiate(&executable, graph, 0));
    printf(" %d", cudaGraphExecUpdate(executable, graph, &result)), printf(" %d", captured(a, 0, 1, &other));
    printf(" %d", cudaGraphExecUpdate(executable, other, &result)), printf(" %d\n", result);
}

static int one(void) {
    char *a, back[4];
    int error = cudaMalloc((void **)&a, 4);
    if (error) return error;
    cudaMemcpy(a, "abc", 4, 1), cudaMemcpy(back, a, 4, 2);
    return strcmp(back, "abc");
}

static void children(int first) {
    int status[3];
    if (first) one();
    for (int k = 0; k < 3; k++)
        if (!fork()) _exit(one());
    for (int k = 0; k < 3; k++) wait(&status[k]);
    printf("%d %d %d %d\n", one(), WEXITSTATUS(status[0]), WEXITSTATUS(status[1]), WEXITSTATUS(status[2]));
}

int main(int count, char **words) {
    const char *way = words[1];
    if (!strcmp(way, "copies")) copies();
    if (!strcmp(way, "handles")) handles();
    if (!strcmp(way, "arguments")) arguments();
    if (!strcmp(way, "captures")) captures();
    if (!strcmp(way, "children")) children(count > 2);
    if (!strcmp(way, "many")) {
        int failed = 0;
        void *a;
        for (int k = 0; k < 5000; k++) failed += cudaMalloc(&a, 16) != 0;
        printf("%d\n", failed);
    }
    if (!strcmp(way, "daemon") && !one() && !fork()) setsid(), sleep(100);
    if (!strcmp(way, "abort") && !one()) abort();
    if (!strcmp(way, "kill") && !one()) raise(SIGKILL);
    if (!strcmp(way, "closes") && !one()) {
        for (int k = 3; k < 100; k++) close(k);
        one();
    }
    if (!strcmp(way, "bytes") && !one()) memset(big, 0xEE, 64), printf("%zd\n", write(atoi(getenv("ABSTIM_APP_SOCKET")), big, 64)), one();
    return 0;
}
