// The table in anonymous memory that lies in base/.
#pragma once

#include "base/mapped_array.h"
