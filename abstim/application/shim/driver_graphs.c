// The driver API's graphs that are built by hand. Nodes, and what describes them, are the runtime's; contexts there is one of.
#include "public_calls.h"

typedef struct Node Node;
#define NODE Node **node, Graph *graph, Node *const *before, size_t count

PUBLIC Error cuGraphCreate(Graph **graph, unsigned flags) { return DRIVER(cudaGraphCreate(graph, flags)); }
PUBLIC Error cuGraphAddKernelNode(NODE, const void *p) {
    return DRIVER(cudaGraphAddKernelNode(node, graph, before, count, p));
}
PUBLIC Error cuGraphAddKernelNode_v2(NODE, const void *p) { return cuGraphAddKernelNode(node, graph, before, count, p); }
PUBLIC Error cuGraphAddMemsetNode(NODE, const void *p, Context *context) {
    (void)context;
    return DRIVER(cudaGraphAddMemsetNode(node, graph, before, count, p));
}
PUBLIC Error cuGraphAddHostNode(NODE, const void *p) { return DRIVER(cudaGraphAddHostNode(node, graph, before, count, p)); }
PUBLIC Error cuGraphAddEmptyNode(NODE) { return DRIVER(cudaGraphAddEmptyNode(node, graph, before, count)); }
PUBLIC Error cuGraphAddChildGraphNode(NODE, Graph *child) {
    return DRIVER(cudaGraphAddChildGraphNode(node, graph, before, count, child));
}
PUBLIC Error cuGraphAddEventRecordNode(NODE, Event *event) {
    return DRIVER(cudaGraphAddEventRecordNode(node, graph, before, count, event));
}
PUBLIC Error cuGraphAddEventWaitNode(NODE, Event *event) {
    return DRIVER(cudaGraphAddEventWaitNode(node, graph, before, count, event));
}
PUBLIC Error cuGraphKernelNodeSetParams(Node *node, const void *p) { return DRIVER(cudaGraphKernelNodeSetParams(node, p)); }
PUBLIC Error cuGraphKernelNodeSetParams_v2(Node *node, const void *p) { return cuGraphKernelNodeSetParams(node, p); }
PUBLIC Error cuGraphExecKernelNodeSetParams(Graph *executable, Node *node, const void *p) {
    return DRIVER(cudaGraphExecKernelNodeSetParams(executable, node, p));
}
PUBLIC Error cuGraphExecKernelNodeSetParams_v2(Graph *executable, Node *node, const void *p) {
    return cuGraphExecKernelNodeSetParams(executable, node, p);
}
