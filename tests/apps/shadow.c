/* A preloaded library that defines one function of the driver: the driver must not take it for its own. */
int cuLaunchCooperativeKernel(void) { return 12345; }
