-- SPDX-License-Identifier: GPL-2.0-or-later
-- For wrk: each request asks for a key at random, of as many as the last word says.
function init(words)
   keys = tonumber(words[#words])
   math.randomseed(os.time())
end

function request()
   return wrk.format("GET", string.format("/key:%012d", math.random(0, keys - 1)))
end
