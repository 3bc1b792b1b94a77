# Read by llama.cpp's CMake project where llama-cpp-python is built with the CMAKE_ARGS of cmake_args.py.
set(LLAMA_BUILD_COMMON OFF)
