# Settings that may come as -DNAME=value or as an environment variable NAME (all that pip and make can pass), and folders.

# A -D given to the first configure wins over the environment; later, a changed environment wins over the cache, so that
# `ORTOPS_CUDA=on make` after `make` does what it says.
function(ortops_setting name default text)
  set(seen ORTOPS_SEEN_${name})
  if(NOT DEFINED CACHE{${name}})
    if(DEFINED ENV{${name}})
      set(default "$ENV{${name}}")
    endif()
    set(${name} "${default}" CACHE STRING "${text}")
  elseif(DEFINED ENV{${name}} AND DEFINED CACHE{${seen}} AND NOT "$ENV{${name}}" STREQUAL "$CACHE{${seen}}")
    set(${name} "$ENV{${name}}" CACHE STRING "${text}" FORCE)
  endif()
  if(DEFINED ENV{${name}})
    set(${seen} "$ENV{${name}}" CACHE INTERNAL "")
  elseif(NOT DEFINED CACHE{${seen}})
    set(${seen} "" CACHE INTERNAL "")
  endif()
endfunction()

# Debugging is asked for; speed is not.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

# What is fetched is kept in a checkout for the next build folder; a source archive leaves nothing behind.
if(EXISTS ${CMAKE_SOURCE_DIR}/.git)
  set(ortops_cache ${CMAKE_SOURCE_DIR}/.cache)
else()
  set(ortops_cache ${CMAKE_BINARY_DIR}/cache)
endif()

# The checkout's own virtual environment needs no activation.
if(NOT Python_EXECUTABLE AND NOT DEFINED ENV{VIRTUAL_ENV} AND EXISTS ${CMAKE_SOURCE_DIR}/.venv/bin/python)
  set(Python_EXECUTABLE ${CMAKE_SOURCE_DIR}/.venv/bin/python)
endif()

find_program(CCACHE_PROGRAM ccache)
mark_as_advanced(CCACHE_PROGRAM)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
