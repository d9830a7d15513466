/* A CUDA driver that starts nothing, and writes down what it is asked to start: for machines without a GPU.

   Triton's launchers call it as libcuda.so.1. Of a launch it keeps the function, the grid, the block, the shared
   memory, the stream, and as many parameters of eight bytes or fewer as `hccs_expect` said the function has. */
#include <stdint.h>
#include <string.h>

enum { MOST_FUNCTIONS = 64, MOST_PARAMETERS = 64, MOST_LAUNCHES = 256 };

typedef struct {
  unsigned grid[3], block[3], shared;
  void* stream;
  void* attributes;
  unsigned attribute_count;
} Config; /* the beginning of CUlaunchConfig */

typedef struct {
  uint64_t function, stream;
  uint32_t grid[3], block[3], shared, count;
  uint64_t parameters[MOST_PARAMETERS];
} Launch;

static uint64_t functions; /* their handles count from one */
static int counts[MOST_FUNCTIONS], sizes[MOST_FUNCTIONS][MOST_PARAMETERS];
static int launch_count;
static Launch launches[MOST_LAUNCHES];

int hccs_launch_count(void) { return launch_count; }
const Launch* hccs_launch(int i) { return &launches[i]; }
void hccs_expect(uint64_t function, int count, const int* given) {
  counts[function] = count;
  memcpy(sizes[function], given, count * sizeof(int));
}

int cuLaunchKernelEx(const Config* config, void* function, void** parameters, void** extra) {
  Launch* launch = &launches[launch_count++];
  memset(launch, 0, sizeof *launch);
  launch->function = (uint64_t)function;
  launch->stream = (uint64_t)config->stream;
  memcpy(launch->grid, config->grid, sizeof config->grid);
  memcpy(launch->block, config->block, sizeof config->block);
  launch->shared = config->shared;
  launch->count = counts[launch->function];
  for (unsigned i = 0; i < launch->count; i++)
    memcpy(&launch->parameters[i], parameters[i], sizes[launch->function][i]);
  (void)extra;
  return 0;
}

/* Every address is one of the device. */
int cuPointerGetAttribute(void* found, int what, uint64_t address) {
  (void)what;
  memcpy(found, &address, sizeof address);
  return 0;
}

int cuModuleGetFunction(uint64_t* function, void* module, const char* name) {
  (void)module, (void)name;
  *function = ++functions;
  return 0;
}

int cuCtxGetCurrent(void** context) { return *context = &functions, 0; }
int cuModuleLoadData(void** module, const void* image) { return (void)image, *module = &functions, 0; }
int cuFuncGetAttribute(int* found, int what, void* function) { return (void)function, *found = what ? 0 : 1024, 0; }
int cuDeviceGetAttribute(int* found, int what, int device) { return (void)what, (void)device, *found = 232448, 0; }
int cuGetErrorString(int error, const char** text) { return (void)error, *text = "an error", 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }

/* Linked by Triton, and of no use to a launch. */
int nothing(void) { return 0; }
#define NOTHING(name) int name(void) __attribute__((alias("nothing")))
NOTHING(cuCtxGetDevice);
NOTHING(cuCtxGetLimit);
NOTHING(cuCtxSetCurrent);
NOTHING(cuCtxSetLimit);
NOTHING(cuDeviceGet);
NOTHING(cuDeviceGetCount);
NOTHING(cuDevicePrimaryCtxRetain);
NOTHING(cuFuncSetAttribute);
NOTHING(cuFuncSetCacheConfig);
NOTHING(cuInit);
NOTHING(cuModuleUnload);
NOTHING(cuOccupancyMaxActiveClusters);
NOTHING(cuStreamIsCapturing);
NOTHING(cuTensorMapEncodeIm2col);
NOTHING(cuTensorMapEncodeTiled);
