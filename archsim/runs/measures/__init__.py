"""What each column of the results means, beside the function that measures it: a topic a file."""
