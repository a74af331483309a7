/* Virtual memory management, for the programs that use it. */
#ifndef TG_VMM_H
#define TG_VMM_H
#include "tg.h"

typedef struct {
    int type, id;
} Location;
typedef struct {
    int type, handle_types;
    Location location;
    void *win32;
    unsigned char flags[8];
} Prop;
typedef struct {
    Location location;
    int flags;
} Access;

CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t);
CUresult cuMemAddressFree(CUdeviceptr, size_t);
CUresult cuMemCreate(uint64_t *, size_t, const Prop *, uint64_t);
CUresult cuMemRelease(uint64_t);
CUresult cuMemMap(CUdeviceptr, size_t, size_t, uint64_t, uint64_t);
CUresult cuMemUnmap(CUdeviceptr, size_t);
CUresult cuMemSetAccess(CUdeviceptr, size_t, const Access *, size_t);
CUresult cuMemGetAccess(uint64_t *, const Location *, CUdeviceptr);
CUresult cuMemGetAllocationGranularity(size_t *, const Prop *, int);
CUresult cuMemRetainAllocationHandle(uint64_t *, void *);
CUresult cuPointerGetAttribute(void *, int, CUdeviceptr);
CUresult cuMemGetInfo_v2(size_t *, size_t *);

enum { MIB = 1 << 20, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700 };
#endif
