--needs shard
--exports refusing
-- Refusing emissions whose queue cannot be written, because somebody else's value stands in the place of its set.
refusing = {}

-- Returns the refused jobs, id -> the key that cannot be written, and the function that refuses one: it takes back
-- what was written of it.
function refusing.begin()
  local refused = {}
  return refused, function(id, _, _, place)
    refused[id] = place
    redis.call('DEL', shard.job_root .. id, shard.key('body', id), shard.key('more', id))
  end
end

function refusing.tell(answer, index, id, place)
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4], answer[n + 5] = index, 'foreign', id, '', place
end
