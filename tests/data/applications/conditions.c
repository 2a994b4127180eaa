// Conditional nodes of graphs: a loop whose body decides, each time, between two graphs, and a switch behind it.
#include "cuda_abi.h"
typedef struct { uint64_t handle; unsigned type, count; Graph *bodies; } Conditional;
typedef struct { int type, reserved[3]; union { KernelNode kernel; Conditional condition; char space[232]; }; } AnyNode;
int cudaGraphConditionalHandleCreate(uint64_t *, Graph, unsigned, unsigned);
int cudaGraphAddNode(void **, Graph, void *const *, const void *, size_t, AnyNode *);
enum { KERNEL = 0, CONDITIONAL = 13, IF = 0, WHILE = 1, SWITCH = 2, ASSIGN_DEFAULT = 1 };

// `step` counts down, goes on while something is left, and says whether that is odd; `mark` adds 1
static const char *const kernels = ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".extern .func cudaGraphSetConditional (.param .b64 h, .param .b32 v);\n"
#define SET(handle, value) \
    " { .param .b64 h; st.param.b64 [h], " handle "; .param .b32 v; st.param.b32 [v], " value ";\n" \
    "   call.uni cudaGraphSetConditional, (h, v); }\n"
    ".visible .entry step(.param .u64 p, .param .u64 loop, .param .u64 odd) { .reg .b32 %r<4>; .reg .b64 %rd<4>;\n"
    " ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [loop]; ld.param.u64 %rd3, [odd]; ld.global.u32 %r1, [%rd1];\n"
    " sub.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1; and.b32 %r2, %r1, 1;\n" SET("%rd2", "%r1") SET("%rd3", "%r2") " ret; }\n"
    ".visible .entry mark(.param .u64 p) { .reg .b32 %r<2>; .reg .b64 %rd<2>; ld.param.u64 %rd1, [p];\n"
    " ld.global.u32 %r1, [%rd1]; add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1; ret; }\n";
static char step, mark;

static void *node(Graph graph, void *before, AnyNode *what) {
    void *made;
    OK(cudaGraphAddNode(&made, graph, before ? &before : NULL, NULL, before != NULL, what));
    return made;
}
static AnyNode kernel(void *function, void **arguments) {
    return (AnyNode){.type = KERNEL, .kernel = {function, {1, 1, 1}, {1, 1, 1}, 0, arguments, NULL}};
}
static AnyNode conditional(uint64_t handle, unsigned type, unsigned count) {
    return (AnyNode){.type = CONDITIONAL, .condition = {handle, type, count, NULL}};
}

int main(void) {
    void **fat = __cudaRegisterFatBinary(fat_binary(kernels));
    __cudaRegisterFunction(fat, &step, "step", "step", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFunction(fat, &mark, "mark", "mark", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFatBinaryEnd(fat);
    unsigned *counts, found[4], *places[4];  // left; odd, even; marks of the switch
    OK(cudaMalloc((void **)&counts, sizeof found));
    for (int k = 0; k < 4; k++) places[k] = counts + k;
    uint64_t loop, odd, choice;
    Graph graph, executable;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphConditionalHandleCreate(&loop, graph, 7, ASSIGN_DEFAULT));
    OK(cudaGraphConditionalHandleCreate(&choice, graph, 2, ASSIGN_DEFAULT));
    AnyNode whole = conditional(loop, WHILE, 1), last = conditional(choice, SWITCH, 3);
    void *first = node(graph, NULL, &whole);
    Graph body = whole.condition.bodies[0];
    OK(cudaGraphConditionalHandleCreate(&odd, body, 0, 0));
    AnyNode down = kernel(&step, (void *[]){&places[0], &loop, &odd}), either = conditional(odd, IF, 2);
    node(body, node(body, NULL, &down), &either);
    for (int k = 0; k < 2; k++) {
        AnyNode one = kernel(&mark, (void *[]){&places[1 + k]});
        node(either.condition.bodies[k], NULL, &one);
    }
    node(graph, first, &last);
    AnyNode one = kernel(&mark, (void *[]){&places[3]});
    node(last.condition.bodies[2], NULL, &one);
    OK(cudaGraphInstantiate(&executable, graph, 0));
    for (unsigned start = 5; start < 7; start++) {  // 5: left 4, 3, 2, 1, 0; 6: one odd more
        unsigned given[4] = {start, 0, 0, 0};
        OK(cudaMemcpy(counts, given, sizeof given, 1)), OK(cudaGraphLaunch(executable, NULL));
        OK(cudaMemcpy(found, counts, sizeof found, 2));
        HOLDS(found[0] == 0 && found[1] == start / 2 && found[2] == start - start / 2 && found[3] == 1);
    }
    AnyNode wrong = conditional(loop, WHILE, 2);
    void *made;
    FAILS(1, cudaGraphAddNode(&made, graph, NULL, NULL, 0, &wrong));
    printf("PASSED\n");
    return 0;
}
