/* The rules of stream capture as the driver API's manual gives them: what records, what joins, what is refused and
 * what that breaks. Every scene begins without any capture. Prints "ok". */
#include "tg.h"
#include <pthread.h>

CUresult cuStreamIsCapturing(CUstream, int *);
CUresult cuStreamGetCaptureInfo_v2(CUstream, int *, uint64_t *, CUgraph *, const void ***, size_t *);
CUresult cuThreadExchangeStreamCaptureMode(int *);
CUresult cuEventQuery(CUevent);
CUresult cuGraphGetNodes(CUgraph, void **, size_t *);
CUresult cuGraphGetEdges_v2(CUgraph, void **, void **, void *, size_t *);
CUresult cuStreamBeginCapture_v2_ptsz(CUstream, int);
CUresult cuStreamEndCapture_ptsz(CUstream, CUgraph *);
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                             void **, void **);

enum { UNSUPPORTED = 900, INVALIDATED, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED, WRONG_THREAD };
enum { GLOBAL, THREAD_LOCAL, RELAXED };
enum { ILLEGAL_STATE = 401, NON_BLOCKING = 1 };

static CUfunction spin, count_up;
static CUdeviceptr counter;
static CUstream s, t, n; /* s and t synchronise with the legacy stream, n does not */
static CUevent e, f;
static CUgraph graph;

static CUresult launch(CUstream stream)
{
    uint64_t ns = 0, tag = 0;
    void *args[] = {&counter, &ns, &tag};
    return cuLaunchKernel(count_up, 1, 1, 1, 1, 1, 1, 0, stream, args, 0);
}

static uint64_t counted(void)
{
    uint64_t value = 0;
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH_v2(&value, counter, sizeof value));
    return value;
}

/* Ends a capture that something invalidated. */
static void spoilt(CUstream stream)
{
    graph = (CUgraph)1;
    IS(launch(stream), INVALIDATED);
    IS(cuStreamEndCapture(stream, &graph), INVALIDATED);
    CHECK(graph == 0);
    IS(launch(stream), 0);
}

struct call {
    CUresult (*what)(void);
    CUresult result;
};

static void *in_thread(void *at)
{
    struct call *call = at;
    CUcontext context;
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    call->result = call->what();
    return 0;
}

static CUresult elsewhere(CUresult (*what)(void))
{
    struct call call = {what, -1};
    pthread_t thread;
    pthread_create(&thread, 0, in_thread, &call);
    pthread_join(thread, 0);
    return call.result;
}

static CUresult allocate(void)
{
    CUdeviceptr at;
    CUresult result = cuMemAlloc_v2(&at, 64);
    if (!result)
        MUST(cuMemFree_v2(at));
    return result;
}
static CUresult allocate_only(void)
{
    CUdeviceptr at;
    return cuMemAlloc_v2(&at, 64);
}
static CUresult query_legacy(void) { return cuStreamQuery(0); }
static CUresult query_n(void) { return cuStreamQuery(n); }
static CUresult query_event(void) { return cuEventQuery(f); }
static CUresult end_s(void) { return cuStreamEndCapture(s, &graph); }
static CUresult relaxed_query(void)
{
    int mode = RELAXED;
    MUST(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == GLOBAL);
    return cuStreamQuery(n);
}

static void records_and_does_not_run(void)
{
    CUgraphExec exec;
    int status = -1;
    uint64_t before = counted(), id = 0;
    size_t nodes = 0;
    MUST(cuStreamBeginCapture_v2(s, GLOBAL));
    IS(cuStreamBeginCapture_v2(s, GLOBAL), ILLEGAL_STATE);
    MUST(cuStreamIsCapturing(s, &status));
    CHECK(status == 1);
    MUST(cuStreamIsCapturing(t, &status));
    CHECK(status == 0);
    IS(cuStreamIsCapturing(0, &status), IMPLICIT);
    for (int i = 0; i < 5; i++)
        MUST(launch(s));
    MUST(cuStreamGetCaptureInfo_v2(s, &status, &id, &graph, 0, &nodes));
    CHECK(status == 1 && id != 0 && nodes == 1);
    MUST(cuStreamEndCapture(s, &graph));
    CHECK(counted() == before);
    MUST(cuGraphGetNodes(graph, 0, &nodes));
    CHECK(nodes == 5);
    MUST(cuGraphGetEdges_v2(graph, 0, 0, 0, &nodes));
    CHECK(nodes == 4);
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphLaunch(exec, s));
    MUST(cuGraphLaunch(exec, n));
    CHECK(counted() == before + 10);

    /* A graph launched in a capturing stream is a node. */
    MUST(cuGraphDestroy(graph));
    MUST(cuStreamBeginCapture_v2(s, GLOBAL));
    MUST(cuGraphLaunch(exec, s));
    MUST(cuGraphLaunch(exec, s));
    MUST(cuStreamEndCapture(s, &graph));
    CHECK(counted() == before + 10);
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphDestroy(graph));
    MUST(cuGraphLaunch(exec, t));
    CHECK(counted() == before + 20);
    MUST(cuGraphExecDestroy(exec));
}

static void events_fork_and_join(void)
{
    size_t edges = 0;
    MUST(cuStreamBeginCapture_v2(s, GLOBAL));
    MUST(launch(s));
    MUST(cuEventRecord(e, s));
    MUST(cuStreamWaitEvent(t, e, 0));
    MUST(launch(t));
    MUST(launch(s));
    MUST(cuEventRecord(f, t));
    MUST(cuStreamWaitEvent(s, f, 0));
    MUST(launch(s));
    MUST(cuStreamEndCapture(s, &graph));
    MUST(cuGraphGetEdges_v2(graph, 0, 0, 0, &edges));
    CHECK(edges == 4);
    MUST(cuGraphDestroy(graph));
    IS(cuEventQuery(f), CAPTURED);
    IS(cuStreamWaitEvent(t, f, 0), CAPTURED);
    MUST(cuEventRecord(f, t));
    MUST(cuEventSynchronize(f));

    MUST(cuStreamBeginCapture_v2(s, GLOBAL));
    MUST(cuEventRecord(e, s));
    MUST(cuStreamWaitEvent(t, e, 0));
    MUST(launch(t));
    IS(cuStreamEndCapture(t, &graph), UNMATCHED);
    spoilt(s);

    MUST(cuStreamBeginCapture_v2(s, GLOBAL));
    MUST(cuEventRecord(e, s));
    MUST(cuStreamWaitEvent(t, e, 0));
    MUST(launch(t));
    IS(cuStreamEndCapture(s, &graph), UNJOINED);
    MUST(launch(t));

    /* Work outside of the capture cannot be waited for. */
    MUST(cuEventRecord(f, t));
    MUST(cuStreamBeginCapture_v2(s, GLOBAL));
    IS(cuStreamWaitEvent(s, f, 0), ISOLATION);
    spoilt(s);

    /* Nor work of another capture. */
    MUST(cuStreamBeginCapture_v2(s, GLOBAL));
    MUST(cuStreamBeginCapture_v2(t, GLOBAL));
    MUST(cuEventRecord(e, s));
    IS(cuStreamWaitEvent(t, e, 0), MERGE);
    spoilt(s);
    spoilt(t);
}

static void asking_invalidates(void)
{
    MUST(cuStreamBeginCapture_v2(s, RELAXED));
    IS(cuStreamQuery(s), UNSUPPORTED);
    spoilt(s);
    MUST(cuStreamBeginCapture_v2(s, RELAXED));
    IS(cuStreamSynchronize(s), UNSUPPORTED);
    spoilt(s);
    MUST(cuStreamBeginCapture_v2(s, RELAXED));
    IS(cuCtxSynchronize(), UNSUPPORTED);
    spoilt(s);
    MUST(cuStreamBeginCapture_v2(s, RELAXED));
    MUST(cuEventRecord(e, s));
    IS(cuEventSynchronize(e), CAPTURED);
    spoilt(s);
    MUST(cuEventRecord(e, t));
}

static void the_legacy_stream_is_no_bystander(void)
{
    uint64_t word = 0;
    IS(cuStreamBeginCapture_v2(0, GLOBAL), UNSUPPORTED);
    IS(cuStreamEndCapture(s, &graph), ILLEGAL_STATE);
    MUST(cuStreamBeginCapture_v2(s, RELAXED));
    IS(launch(0), IMPLICIT);
    spoilt(s);
    MUST(cuStreamBeginCapture_v2(s, RELAXED));
    IS(cuMemcpyDtoH_v2(&word, counter, sizeof word), IMPLICIT);
    spoilt(s);
    MUST(cuStreamBeginCapture_v2(s, GLOBAL));
    IS(elsewhere(query_legacy), IMPLICIT);
    spoilt(s);
    /* A stream that does not synchronise with it may capture beside it. */
    MUST(cuStreamBeginCapture_v2(n, RELAXED));
    MUST(launch(n));
    MUST(launch(0));
    MUST(cuStreamSynchronize(0));
    MUST(cuStreamEndCapture(n, &graph));
    MUST(cuGraphDestroy(graph));
}

static void unsafe_calls_are_refused_as_the_modes_say(void)
{
    int mode;
    MUST(cuStreamBeginCapture_v2(s, GLOBAL));
    IS(allocate(), UNSUPPORTED);
    spoilt(s);
    MUST(cuStreamBeginCapture_v2(s, GLOBAL));
    IS(elsewhere(allocate), UNSUPPORTED);
    spoilt(s);
    MUST(cuStreamBeginCapture_v2(s, GLOBAL));
    IS(elsewhere(query_event), UNSUPPORTED);
    spoilt(s);
    MUST(cuStreamBeginCapture_v2(s, GLOBAL));
    IS(elsewhere(query_n), UNSUPPORTED);
    spoilt(s);

    MUST(cuStreamBeginCapture_v2(s, GLOBAL));
    IS(elsewhere(relaxed_query), 0);
    MUST(cuStreamEndCapture(s, &graph));
    MUST(cuGraphDestroy(graph));

    MUST(cuStreamBeginCapture_v2(s, THREAD_LOCAL));
    IS(elsewhere(allocate_only), 0);
    IS(elsewhere(query_n), 0);
    IS(elsewhere(end_s), WRONG_THREAD);
    MUST(cuStreamEndCapture(s, &graph));
    MUST(cuGraphDestroy(graph));
    MUST(cuStreamBeginCapture_v2(s, THREAD_LOCAL));
    IS(allocate(), UNSUPPORTED);
    spoilt(s);

    MUST(cuStreamBeginCapture_v2(s, RELAXED));
    IS(allocate_only(), 0);
    IS(elsewhere(end_s), 0);
    MUST(cuGraphDestroy(graph));

    mode = THREAD_LOCAL;
    MUST(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == GLOBAL);
    MUST(cuStreamBeginCapture_v2(s, GLOBAL));
    IS(allocate(), UNSUPPORTED);
    MUST(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == THREAD_LOCAL);
    spoilt(s);
}

static void a_threads_own_stream_captures(void)
{
    uint64_t ns = 0, tag = 0, before = counted();
    void *args[] = {&counter, &ns, &tag};
    size_t nodes = 0;
    MUST(cuStreamBeginCapture_v2_ptsz(0, GLOBAL));
    MUST(cuLaunchKernel_ptsz(count_up, 1, 1, 1, 1, 1, 1, 0, 0, args, 0));
    MUST(cuStreamEndCapture_ptsz((CUstream)2, &graph));
    MUST(cuGraphGetNodes(graph, 0, &nodes));
    CHECK(nodes == 1);
    MUST(cuGraphDestroy(graph));
    CHECK(counted() == before);
}

int main(void)
{
    tg_context(0);
    spin = tg_kernel("tg_spin_ns");
    count_up = tg_kernel("tg_count");
    MUST(cuMemAlloc_v2(&counter, 8));
    MUST(cuMemsetD8_v2(counter, 0, 8));
    MUST(cuStreamCreate(&s, 0));
    MUST(cuStreamCreate(&t, 0));
    MUST(cuStreamCreate(&n, NON_BLOCKING));
    MUST(cuEventCreate(&e, 0));
    MUST(cuEventCreate(&f, 0));
    records_and_does_not_run();
    events_fork_and_join();
    asking_invalidates();
    the_legacy_stream_is_no_bystander();
    unsafe_calls_are_refused_as_the_modes_say();
    a_threads_own_stream_captures();
    puts("ok");
    return 0;
}
