/* Prints what the driver calls GPU 0. */
#include "tg.h"

CUresult cuDeviceGetName(char *, int, CUdevice);

int main(void)
{
    char name[64];
    MUST(cuInit(0));
    MUST(cuDeviceGetName(name, sizeof name, 0));
    puts(name);
    return 0;
}
