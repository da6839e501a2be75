#include "float_cpu.h"
